package nvmf

import (
	"sync/atomic"

	"softiser/internal/nvme"
)

// countRefused books a Connect that is refused. The reasons are ours: there are few.
func (f *Frontend) countRefused(why nvme.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused[why&^nvme.DoNotRetry]++
}

// Traffic is what hosts have asked for and got.
type Traffic struct {
	Commands   uint64 `json:"commands_total"` // answered, whatever they were
	Failed     uint64 `json:"failed_commands_total"`
	Reads      uint64 `json:"reads_total"`
	Writes     uint64 `json:"writes_total"`
	ReadBytes  uint64 `json:"read_bytes"`
	WriteBytes uint64 `json:"write_bytes"`
}

// counters are those of one queue: queues of a controller share no cache line.
type counters struct {
	commands, failed, reads, writes, readBytes, writeBytes atomic.Uint64
}

// count books a command that is being answered.
func (c *counters) count(r *request, s nvme.Status) {
	c.commands.Add(1)
	switch {
	case !s.OK():
		c.failed.Add(1)
	case r.ns == nil:
	case r.sqe().Opcode() == nvme.OpRead:
		c.reads.Add(1)
		c.readBytes.Add(uint64(r.n))
	case r.sqe().Opcode() == nvme.OpWrite:
		c.writes.Add(1)
		c.writeBytes.Add(uint64(r.n))
	}
}

// add adds what a queue has done.
func (t *Traffic) add(c *counters) {
	t.Commands += c.commands.Load()
	t.Failed += c.failed.Load()
	t.Reads += c.reads.Load()
	t.Writes += c.writes.Load()
	t.ReadBytes += c.readBytes.Load()
	t.WriteBytes += c.writeBytes.Load()
}
