package attach

import (
	"fmt"
	"time"
)

// The kernel writes a block device's page cache back when its last user closes
// it. At the end of an attachment another process may still have it open: what
// that one has written and not synced would be lost with the connection.

// noticeAfter is how long writing back may take before a notice is due.
const noticeAfter = time.Second

// writeBack runs sync on the device, for FinishTimeout at most: a task in the
// kernel cannot be called back. What is not written by then is lost with the
// device, and the error says so.
func (a *Attachment) writeBack(path string, sync func(string) error) error {
	if a.unwritten() {
		return nil
	}
	a.takenBack.Store(true)
	done := make(chan error, 1)
	go func() { done <- sync(path) }()
	limit := time.NewTimer(max(a.opt.FinishTimeout, time.Second))
	defer limit.Stop()
	notice := time.NewTicker(noticeAfter)
	defer notice.Stop()
	for begun := time.Now(); ; {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s: what the kernel holds could not be written back, and may be lost: %w", path, err)
			}
			return nil
		case <-notice.C:
			a.opt.notice(fmt.Sprintf("%s: the kernel writes back what it holds, for %v now; interrupt once more to give that up", path, time.Since(begun).Round(time.Second)))
			notice.Reset(10 * noticeAfter)
		case <-limit.C:
			return fmt.Errorf("%s: the kernel did not finish writing back within %v; what it still held is lost", path, a.opt.FinishTimeout)
		}
	}
}
