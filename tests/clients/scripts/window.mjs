// The TypeScript SDK in Node: volumes, settings of the network, and links to ports.
import assert from 'node:assert/strict'

import { Daytona } from '@daytona/sdk'

const daytona = new Daytona()
const name = `data-${Date.now()}`

// Volumes.
await assert.rejects(daytona.volume.get(name), { name: 'DaytonaNotFoundError' })
const volume = await daytona.volume.get(name, true)
assert.deepEqual([volume.name, volume.state], [name, 'ready'])
await assert.rejects(daytona.volume.create(name), /already exists/)
assert.equal((await daytona.volume.get(name)).id, volume.id)
assert.ok((await daytona.volume.list()).some((each) => each.id === volume.id))

const mounted = (subpath) => ({ volumes: [{ volumeId: volume.id, mountPath: '/home/daytona/data', subpath }] })
await assert.rejects(daytona.create({ volumes: [{ volumeId: 'missing', mountPath: '/data' }] }), {
  name: 'DaytonaNotFoundError',
})
await assert.rejects(daytona.create({ volumes: [{ volumeId: volume.id, mountPath: '/proc' }] }), /\/proc/)
await assert.rejects(daytona.create(mounted('../up')), /subpath/)
const [whole, part] = [await daytona.create(mounted()), await daytona.create(mounted('users/ann'))]
try {
  assert.deepEqual(part.volumes.map((each) => [each.volumeId, each.mountPath, each.subpath]), [
    [volume.id, '/home/daytona/data', 'users/ann'],
  ])
  await part.fs.uploadFile(Buffer.from('shared'), 'data/file')
  assert.equal((await whole.process.executeCommand('cat data/users/ann/file')).result, 'shared')
  await assert.rejects(daytona.volume.delete(volume), /in use/)
  await part.stop()
  await part.start()
  assert.equal((await part.fs.downloadFile('data/file')).toString(), 'shared')
} finally {
  await whole.delete()
  await part.delete()
}
await daytona.volume.delete(volume)
assert.ok(!(await daytona.volume.list()).some((each) => each.id === volume.id))
await assert.rejects(daytona.volume.get(name), { name: 'DaytonaNotFoundError' })

// The network: this server's ceiling is permitted.invalid.
const sandbox = await daytona.create({ networkBlockAll: true })
try {
  const lookUp = 'getent hosts refused.invalid permitted.invalid'
  assert.equal(sandbox.networkBlockAll, true)
  assert.equal((await sandbox.process.executeCommand(lookUp)).exitCode, 2)
  await assert.rejects(sandbox.updateNetworkSettings({}), /At least one/)
  await assert.rejects(sandbox.updateNetworkSettings({ domainAllowList: 'elsewhere.invalid' }), {
    name: 'DaytonaAuthorizationError',
    message: /elsewhere\.invalid is not permitted/,
  })
  await assert.rejects(sandbox.updateNetworkSettings({ networkAllowList: 'everything' }), /IPv4 range/)
  assert.equal((await daytona.get(sandbox.id)).networkBlockAll, true)
  await sandbox.updateNetworkSettings({ domainAllowList: 'permitted.invalid' })
  assert.deepEqual([sandbox.networkBlockAll, sandbox.domainAllowList], [false, 'permitted.invalid'])
  await sandbox.updateNetworkSettings({ networkBlockAll: true })
  assert.equal((await daytona.get(sandbox.id)).networkBlockAll, true)
  await sandbox.updateNetworkSettings({ networkBlockAll: false })
  assert.deepEqual([sandbox.networkBlockAll, sandbox.domainAllowList ?? null], [false, null])

  // Links to ports.
  const serve = "python3 -c \"import http.server as h; h.HTTPServer(('127.0.0.1', 8080), h.SimpleHTTPRequestHandler).serve_forever()\""
  await sandbox.fs.uploadFile(Buffer.from('a page'), 'index.html')
  await sandbox.process.createSession('web')
  await sandbox.process.executeSessionCommand('web', { command: serve, runAsync: true })
  const up = 'for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/8080) 2> /dev/null && break; sleep 0.1; done'
  await sandbox.process.executeCommand(up)
  const link = await sandbox.getPreviewLink(8080)
  assert.match(link.url, /^http/)
  assert.notEqual((await fetch(link.url)).status, 200)
  const answer = await fetch(link.url, { headers: { 'x-daytona-preview-token': link.token } })
  assert.equal(await answer.text(), 'a page')
  const signed = await sandbox.getSignedPreviewUrl(8080, 60)
  assert.equal(await (await fetch(signed.url)).text(), 'a page')
  await sandbox.expireSignedPreviewUrl(8080, signed.token)
  assert.notEqual((await fetch(signed.url)).status, 200)
} finally {
  await sandbox.delete()
}
console.log('came to its end')
process.exit(0) // its event socket would keep Node alive
