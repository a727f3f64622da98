package mem

import "sync"

// LocalKey is the lkey that names any memory of the process, for the local source or
// sink of a request. It is reserved: index 0 of the table is never allocated.
const LocalKey uint32 = 0x000000ff

// Memory is a region over one piece of memory, which it remembers after the STag has
// been revoked.
type Memory struct {
	Region

	mu sync.Mutex // guards p; taken with no region locked
	p  []byte
}

// Aim points the region at p under the key that stag ends in.
func (m *Memory) Aim(p []byte, a Access, stag uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.p = p
	m.OpenKey(nil, [][]byte{p}, a, uint8(stag))
}

// Bytes is the memory.
func (m *Memory) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.p
}

// Forget drops the memory.
func (m *Memory) Forget() {
	m.mu.Lock()
	m.p = nil
	m.mu.Unlock()
}
