package attach

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/nbd"
	"softiser/initiator/ublk"
)

// A /dev/nbdN whose process is killed stays connected, to nobody: the driver holds I/O for 30 s, and fails it then. Its
// number is taken until somebody disconnects it. What the driver has been told as its back end (Record.Mark; Linux 5.14
// and later) says whether it is still the device of the record.

// drivers is what is asked of the kernel about devices whose process was killed. Tests have their own.
var drivers = struct {
	nbdMark  func(path string) string
	endNBD   func(path string) error
	findUblk func(mark uint64) (path string, state ublk.State, err error)
	endUblk  func(path string, patience time.Duration) error
	recovery func(ctx context.Context, path string, lun ublk.LUN, client *blockio.Flusher, readOnly bool) (*ublk.Device, error)
	openedBy func(path string) string
}{nbd.MarkOf, nbd.DisconnectKernel, ublk.Find, ublk.Remove, ublk.Recover, ublk.OpenedBy}

// dead reports whether List has found that the process of r was killed.
func (r *Record) dead() bool { return r.State == StateKilled || r.State == StateAbandoned }

// abandoned reports whether the /dev/nbdN of r, whose process is gone, is there yet, and says so in the record.
func (r *Record) abandoned() bool {
	if kindOf(deviceOf(r)) != deviceNBD || r.Mark == "" || drivers.nbdMark(r.Device) != r.Mark {
		return false
	}
	r.State, r.Reason = StateAbandoned, "its process was killed and I/O to it fails; --detach ends it, and so does the next attach of the volume where nobody uses it"
	return true
}

// leave sees to the /dev/nbdN of a process that was killed, whose record this process is about to take. One that somebody
// uses gets a record of its own, by which List and Detach find it.
func (a *Attachment) leave(was *Record) error {
	why := usedBy(was.Device)
	if why == "" {
		err := drivers.endNBD(was.Device)
		if err == nil {
			a.opt.notice(fmt.Sprintf("%s was disconnected: the process that had served it was killed", was.Device))
			return nil
		}
		why = err.Error()
	}
	aside := *was
	aside.Socket, aside.URI, aside.TCP, aside.Control = "", "", "", "" // this process will have them
	f, err := os.OpenFile(strings.TrimSuffix(was.path, ".json")+"-"+filepath.Base(was.Device)+".json", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("attachment record: %w", err)
	}
	defer f.Close()
	if err := aside.write(f); err != nil {
		return err
	}
	a.opt.notice(fmt.Sprintf("%s stays without a process, as that was killed, and I/O to it fails (%s); attach --detach %[1]s ends it", was.Device, why))
	return nil
}
