package blockio

import (
	"context"

	"softiser/blockdev"
)

// Volume is a remote volume with requests of real queue depth. All methods are safe
// for concurrent use.
type Volume interface {
	// Submit starts a request and never blocks; Done is called exactly once for it.
	// Inside a Done callback the command leaves together with the others of that batch
	// of completions; elsewhere it is transmitted at once.
	Submit(*Request)
	// SubmitBatch starts several requests and transmits them together.
	SubmitBatch([]*Request)
	// Do runs a request and waits for its end. When ctx ends first, the command is
	// aborted at the target before Do returns. It sets Request.Done.
	Do(ctx context.Context, r *Request) error
	// Flush makes every completed write durable.
	Flush() error
	// Extents reports the allocation of [off, off+n); all of it is data where the
	// target does not tell.
	Extents(off, n int64) ([]blockdev.Extent, error)

	// Info returns geometry and capabilities as the target last told them.
	Info() blockdev.Info
	// OnResize registers f to be called after the size has changed, with what Info says then:
	// one call at a time, the last one with the size that it has. The returned function removes it.
	OnResize(f func(blockdev.Info)) (cancel func())
	// Limits returns how much one command covers, and by being 0 what there is not.
	Limits() Limits
	// Names are the world-wide names of the volume, the best first: "naa.6…",
	// "eui.…", "uuid.…", "t10.…". Equal ones on two paths mean the same volume.
	Names() []string
	// Describe names volume, transport and its settings for people.
	Describe() string
	// QueueDepth is how many commands are kept outstanding at the target.
	QueueDepth() int
	Stats() Stats
	// NewFlusher makes a user of the volume that is told by itself of a lost cache.
	NewFlusher() *Flusher
	// Close gives the volume back, and ends the sessions that were opened for it. What
	// has not been sent yet ends with ErrClosed. A second Close fails with
	// blockdev.ErrClosed.
	Close() error
}

// Limits are how much one command of a volume covers, bytes; 0 stands for a command
// that the target does not have.
type Limits struct {
	MaxTransfer        int64 `json:"max_transfer"`
	MaxUnmap           int64 `json:"max_unmap"`
	MaxWriteSame       int64 `json:"max_write_same"`
	MaxCompareAndWrite int64 `json:"max_compare_and_write"`
}

// Stats counts what the sessions of a volume did since they were opened. Bytes are
// payload of commands.
type Stats struct {
	Commands    uint64 // commands sent, retries and replays included
	Completed   uint64 // commands answered
	Errors      uint64 // requests that ended with an error
	ReadBytes   uint64
	WriteBytes  uint64
	Outstanding int // commands at the target now
	Waiting     int // requests not fully sent now

	Retries        uint64 // commands sent again after BUSY, TASK SET FULL or a unit attention
	Replayed       uint64 // commands sent again after a reconnect
	OutcomeUnknown uint64 // commands ended with ErrOutcomeUnknown
	Aborts         uint64 // aborts of commands sent
	Resets         uint64 // LUN RESET sent
	Losses         uint64 // connections lost
	Logins         uint64 // successful logins
	LoginFailures  uint64 // failed attempts to log in again
	Pings          uint64 // pings answered

	// Of the datamovers, over all connections.
	PDUsIn, PDUsOut         uint64
	PayloadCopied           uint64 // payload bytes copied in user space (payload_copied_bytes)
	ReceiveCalls, SendCalls uint64 // system calls that moved data
}

// Add adds the counters of another session.
func (st *Stats) Add(o *Stats) {
	st.Commands += o.Commands
	st.Completed += o.Completed
	st.Errors += o.Errors
	st.ReadBytes += o.ReadBytes
	st.WriteBytes += o.WriteBytes
	st.Outstanding += o.Outstanding
	st.Waiting += o.Waiting
	st.Retries += o.Retries
	st.Replayed += o.Replayed
	st.OutcomeUnknown += o.OutcomeUnknown
	st.Aborts += o.Aborts
	st.Resets += o.Resets
	st.Losses += o.Losses
	st.Logins += o.Logins
	st.LoginFailures += o.LoginFailures
	st.Pings += o.Pings
	st.PDUsIn += o.PDUsIn
	st.PDUsOut += o.PDUsOut
	st.PayloadCopied += o.PayloadCopied
	st.ReceiveCalls += o.ReceiveCalls
	st.SendCalls += o.SendCalls
}
