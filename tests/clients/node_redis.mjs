// node-redis against the RESP port.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { createClient, createClientPool } from 'redis';

const [openAddress, guardedAddress, token] = process.argv.slice(2);
const DAY = '86400';
const { version } = createRequire(import.meta.url)('redis/package.json');

/** A client that does not report lost connections: the restart at the end causes them. */
async function connect(address, options = {}) {
  const client = createClient({ url: `redis://${address}`, socket: { reconnectStrategy: () => 20 }, ...options });
  client.on('error', () => {});
  await client.connect();
  return client;
}

async function tryAll(client, name) {
  const throttle = (...args) => client.sendCommand(['CL.THROTTLE', ...args]);
  assert.equal(await client.ping(), 'PONG');
  assert.deepEqual(await throttle(`${name}:a`, '15', '30', '60'), [0, 16, 15, -1, 2]);
  assert.deepEqual(await throttle(`${name}:slow`, '15', '1', DAY, '16'), [0, 16, 0, -1, 16 * DAY]);
  assert.deepEqual((await throttle(`${name}:slow`, '15', '1', DAY)).slice(0, 3), [1, 16, 0]);
  assert.deepEqual((await client.sendCommand(['RK.CHECK', `${name}:b`, '/orders', '2'])).slice(0, 3), [0, 100, 98]);

  await assert.rejects(throttle('a', 'x', '1', '1'), /max_burst is not a whole number/);
  await assert.rejects(client.get('a'), /unknown command 'GET'/);
  assert.equal(await client.echo('still here'), 'still here');

  // Concurrent commands are pipelined.
  const all = await Promise.all(Array.from({ length: 5000 }, () => throttle(`${name}:p`, '9999', '1', DAY)));
  assert.ok(all.every((reply, index) => reply[2] === 9999 - index));

  const together = client.multi();
  for (let index = 0; index < 1500; index += 1) together.addCommand(['CL.THROTTLE', `${name}:m`, '1499', '1', DAY]);
  const replies = await together.exec();
  assert.ok(replies.every((reply, index) => reply[2] === 1499 - index));
  const piped = await client.multi().addCommand(['CL.THROTTLE', `${name}:q`, '9', '1', DAY])
    .addCommand(['PING']).execAsPipeline();
  assert.deepEqual([piped[0][2], piped[1]], [9, 'PONG']);

  assert.match(await client.info(), /ratekeeper_version:/);
  await client.clientSetName('worker-7');
  assert.equal(await client.clientGetName(), 'worker-7');
  assert.ok((await client.clientId()) > 0);
  assert.deepEqual({ ...(await client.configGet('appendonly')) }, { appendonly: 'no' });
  assert.equal(await client.commandCount(), (await client.commandList()).length);
  assert.equal((await client.commandInfo(['cl.throttle']))[0].arity, -5);
}

async function tryToken(options) {
  for (const credentials of [{ password: token }, { username: 'default', password: token }]) {
    const client = await connect(guardedAddress, { ...options, ...credentials });
    assert.equal(await client.ping(), 'PONG');
    client.destroy();
  }
  for (const credentials of [{ password: 'wrong' }, {}]) {
    const attempt = async () => {
      const client = await connect(guardedAddress, { ...options, ...credentials, socket: { reconnectStrategy: false } });
      try { await client.ping(); } finally { client.destroy(); }
    };
    await assert.rejects(attempt(), /NOAUTH|WRONGPASS/);
  }
}

const variants = [{}, { RESP: 2 }, { RESP: 3 }, { RESP: 3, name: 'named' }];
const clients = await Promise.all(variants.map((options) => connect(openAddress, options)));
for (const [number, client] of clients.entries()) await tryAll(client, `node${number}`);
for (const options of [{ RESP: 2 }, { RESP: 3 }]) await tryToken(options);

const pool = createClientPool({ url: `redis://${openAddress}` }, { maximum: 8 });
pool.on('error', () => {});
await pool.connect();
const granted = await Promise.all(Array.from({ length: 500 }, () => pool.sendCommand(['CL.THROTTLE', 'node:pool', '99', '1', DAY])));
assert.equal(granted.filter(([limited]) => limited === 0).length, 100);
pool.destroy();

// The server restarts; the same clients reconnect.
const lines = createInterface({ input: process.stdin });
const restarted = new Promise((resolve) => { lines.once('line', resolve); });
console.log('restart');
await restarted;
for (const [number, client] of clients.entries()) {
  assert.deepEqual(await client.sendCommand(['CL.THROTTLE', `node${number}:after`, '15', '30', '60']), [0, 16, 15, -1, 2]);
}
clients.forEach((client) => client.destroy());
lines.close();
console.log(`node-redis ${version}: both protocols, pipelines, transactions, a pool, tokens and a restart`);
