// The tools, called by the reference client for JavaScript in both generations of the protocol, over
// HTTP and over standard input.
// usage: node generations.mjs URL TOKEN LLMPROF
import assert from 'node:assert/strict'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'

const [url, token, llmprof] = process.argv.slice(2)
const headers = token ? { authorization: `Bearer ${token}` } : {}
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } }),
  stdio: () =>
    new StdioClientTransport({
      command: llmprof,
      args: ['mcp', '--server', url],
      env: { LLMPROF_TOKEN: token ?? '' },
    }),
}
const generations = { '2026-07-28': { pin: '2026-07-28' }, '2025-11-25': 'legacy' }

for (const [version, mode] of Object.entries(generations)) {
  for (const [name, transport] of Object.entries(transports)) {
    const client = new Client({ name: 'check', version: '1' }, { versionNegotiation: { mode } })
    await client.connect(transport())
    assert.equal(client.getNegotiatedProtocolVersion(), version)
    assert.equal(client.getServerVersion()?.name, 'llmprof')
    const { tools } = await client.listTools()
    assert(tools.length > 0 && tools.length <= 10)
    const call = async (tool, args) => {
      const result = await client.callTool({ name: tool, arguments: args })
      assert(Buffer.byteLength(JSON.stringify(result.structuredContent)) <= 16 << 10, tool)
      return result
    }
    const found = await call('find_runs', { state: 'succeeded', limit: 1 })
    const run = found.structuredContent.runs[0].run_id
    const ledger = await call('ledger', { run_id: run })
    assert(ledger.structuredContent.sentences.length > 0 && !ledger.isError)
    const refused = await call('ledger', { run_id: 'latest' })
    assert(refused.isError && refused.content[0].text.includes('find_runs'))
    await assert.rejects(client.callTool({ name: 'delete_everything', arguments: {} }), /the tools are/)
    await client.close()
    console.log(`JavaScript client over ${name}, MCP ${version}: ${tools.length} tools`)
  }
}
