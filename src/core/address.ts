/**
 * A host and its port as they stand in a URL and are shown to people: an IPv6 address gets brackets, without which its
 * last group and the port could not be told apart.
 */
export function hostAndPort({ host, port }: { readonly host: string; readonly port: number }): string {
  return `${host.includes(":") ? `[${host}]` : host}:${port}`;
}
