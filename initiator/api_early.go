package initiator

import (
	"context"
	"errors"

	"softiser/blockdev"
)

var errEarly = errors.New("initiator: login is not built yet")

// Session is one iSCSI session with one target, over iSER or TCP. It survives
// the loss of its connection (see State). All methods are safe for concurrent
// use.
type Session struct{}

// Dial connects and logs in to cfg.TargetName at cfg.Address.
func Dial(ctx context.Context, cfg Config) (*Session, error) { return nil, errEarly }

// LUN looks at one logical unit and returns it as a device on this session.
func (s *Session) LUN(ctx context.Context, n uint64) (*LUN, error) { return nil, errEarly }

// Close logs out and closes the session; what is outstanding ends first, or
// after LogoutTimeout with ErrClosed.
func (s *Session) Close() error { return nil }

// Open dials cfg.Sessions sessions and opens cfg.LUN over all of them.
// Closing the LUN closes the sessions.
func Open(ctx context.Context, cfg Config) (*LUN, error) { return nil, errEarly }

// LUN is one logical unit of a target. It is a blockdev.Device (synchronous,
// copying and leasing) and takes asynchronous Requests with real queue depth.
type LUN struct{}

var _ blockdev.Device = (*LUN)(nil)

// Submit starts r. It never blocks: what exceeds the queue depth or the
// target's command window waits in the session. r.Done is called exactly once,
// also for requests that cannot start. Inside a Done callback the command
// leaves together with the others of that batch of completions; elsewhere it
// is transmitted at once.
func (l *LUN) Submit(r *Request) {}

// SubmitBatch starts several requests and transmits them together.
func (l *LUN) SubmitBatch(rs []*Request) {}

// Do runs r and waits for its end. When ctx ends first, the command is aborted
// at the target (ABORT TASK) before Do returns. It sets r.Done.
func (l *LUN) Do(ctx context.Context, r *Request) error { return errEarly }

// QueueDepth is how many commands the LUN's sessions keep outstanding together.
func (l *LUN) QueueDepth() int { return 0 }

// Describe names target, LUN, transport and its settings for people.
func (l *LUN) Describe() string { return "" }

// Stats adds up the counters of the LUN's sessions.
func (l *LUN) Stats() Stats { return Stats{} }

func (l *LUN) Info() blockdev.Info { return blockdev.Info{} }
func (l *LUN) LeaseRead(ls *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	return errEarly
}
func (l *LUN) LeaseWrite(ls *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	return errEarly
}
func (l *LUN) ReadAt(p []byte, off int64) (int, error)         { return 0, errEarly }
func (l *LUN) WriteAt(p []byte, off int64) (int, error)        { return 0, errEarly }
func (l *LUN) Flush() error                                    { return errEarly }
func (l *LUN) FlushRange(off, n int64) error                   { return errEarly }
func (l *LUN) Discard(off, n int64) error                      { return errEarly }
func (l *LUN) WriteZeroes(off, n int64, mayUnmap bool) error   { return errEarly }
func (l *LUN) Extents(off, n int64) ([]blockdev.Extent, error) { return nil, errEarly }
func (l *LUN) OnResize(f func(blockdev.Info)) (cancel func())  { return func() {} }
func (l *LUN) Close() error                                    { return nil }
