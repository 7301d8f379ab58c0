import { Hono } from "hono";

/** The least that an HTTP answer costs here: hono, a JSON body read and a JSON body sent. Prints its port. */
const app = new Hono();
app.post("/", async (context) => Response.json(await context.req.json()));
const server = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: app.fetch });
console.log(server.port);
