package rdma

import "softiser/rdma/internal/mem"

// Access says what may be done with memory.
type Access uint8

// Access rights. Local reading is always allowed.
const (
	AccessLocalWrite   Access = Access(mem.LocalWrite)
	AccessRemoteRead   Access = Access(mem.RemoteRead)
	AccessRemoteWrite  Access = Access(mem.RemoteWrite)
	AccessRemoteAtomic Access = Access(mem.RemoteAtomic)
	// AccessZeroBased makes the tagged offset of the first byte 0 instead of its
	// virtual address.
	AccessZeroBased Access = Access(mem.ZeroBased)
	// AccessScratch says that what the memory holds is undefined until the window
	// is invalidated: on their way, other bytes that the peer sent may pass through
	// it. It lets the engine take many payloads in one system call. The memory must be
	// the process's own anonymous memory, not the mapping of a file: the Go scheduler is
	// not told of these calls, and they must not wait for a disk.
	// It goes with AccessRemoteWrite on windows.
	AccessScratch Access = Access(mem.Scratch)
)
