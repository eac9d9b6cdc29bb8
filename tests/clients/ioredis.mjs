// ioredis against the RESP port.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { Redis } from 'ioredis';

const [openAddress, guardedAddress, token] = process.argv.slice(2);
const at = (address) => {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
};
const DAY = 86400;
const { version } = createRequire(import.meta.url)('ioredis/package.json');

/** A client that does not report lost connections: the restart at the end causes them. */
function connect(address, options = {}) {
  const client = new Redis({ ...at(address), retryStrategy: () => 20, ...options });
  client.on('error', () => {});
  return client;
}

async function tryAll(client, name) {
  const throttle = (...args) => client.call('CL.THROTTLE', ...args);
  assert.equal(await client.ping(), 'PONG');
  assert.deepEqual(await throttle(`${name}:a`, 15, 30, 60), [0, 16, 15, -1, 2]);
  assert.deepEqual(await throttle(`${name}:slow`, 15, 1, DAY, 16), [0, 16, 0, -1, 16 * DAY]);
  assert.deepEqual((await throttle(`${name}:slow`, 15, 1, DAY)).slice(0, 3), [1, 16, 0]);
  assert.deepEqual((await client.call('RK.CHECK', `${name}:b`, '/orders', 2)).slice(0, 3), [0, 100, 98]);

  await assert.rejects(throttle('a', 'x', 1, 1), /max_burst is not a whole number/);
  await assert.rejects(client.get('a'), /unknown command 'get'/i);
  assert.equal(await client.echo('still here'), 'still here');

  const many = client.pipeline();
  for (let index = 0; index < 5000; index += 1) many.call('CL.THROTTLE', `${name}:p`, 9999, 1, DAY);
  const replies = await many.exec();
  assert.ok(replies.every(([error, reply], index) => error === null && reply[2] === 9999 - index));

  const together = await client.multi().call('CL.THROTTLE', `${name}:m`, 9, 1, DAY).call('CL.THROTTLE', 'a', 9, 0, DAY)
    .call('CL.THROTTLE', `${name}:m`, 9, 1, DAY).exec();
  assert.deepEqual([together[0][1][2], together[2][1][2]], [9, 8]);
  assert.match(together[1][0].message, /zero rates are not supported/);

  // Concurrent commands on one connection.
  const all = await Promise.all(Array.from({ length: 2000 }, () => throttle(`${name}:c`, 999, 1, DAY)));
  assert.equal(all.filter(([limited]) => limited === 0).length, 1000);
  assert.match(await client.info(), /ratekeeper_version:/);
  await client.client('SETNAME', 'worker-7');
  assert.equal(await client.client('GETNAME'), 'worker-7');
}

async function tryToken(options) {
  for (const credentials of [{ password: token }, { username: 'default', password: token }]) {
    const client = connect(guardedAddress, { ...options, ...credentials });
    assert.equal(await client.ping(), 'PONG');
    client.disconnect();
  }
  for (const credentials of [{ password: 'wrong' }, {}]) {
    const client = connect(guardedAddress, { ...options, ...credentials, maxRetriesPerRequest: 1, retryStrategy: null });
    await assert.rejects(client.ping());
    client.disconnect();
  }
}

const variants = [{}, { protocol: 2 }, { protocol: 3 }, { enableAutoPipelining: true }];
const clients = variants.map((options) => connect(openAddress, options));
for (const [number, client] of clients.entries()) await tryAll(client, `io${number}`);
for (const options of [{ protocol: 2 }, { protocol: 3 }]) await tryToken(options);

// The server restarts; the same clients reconnect.
const lines = createInterface({ input: process.stdin });
const restarted = new Promise((resolve) => { lines.once('line', resolve); });
console.log('restart');
await restarted;
for (const [number, client] of clients.entries()) {
  assert.deepEqual(await client.call('CL.THROTTLE', `io${number}:after`, 15, 30, 60), [0, 16, 15, -1, 2]);
}
clients.forEach((client) => client.disconnect());
lines.close();
console.log(`ioredis ${version}: both protocols, pipelines, transactions, tokens and a restart`);
