package attach

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softiser/initiator/ublk"
)

// Record is what is known of one attachment; it is also what --json prints.
type Record struct {
	URL       string    `json:"url"` // without secrets
	Volume    string    `json:"volume"`
	Size      int64     `json:"size"` // bytes
	BlockSize int       `json:"block_size"`
	ReadOnly  bool      `json:"read_only"`
	Export    string    `json:"export"`
	Socket    string    `json:"socket,omitempty"`
	TCP       string    `json:"tcp,omitempty"` // address of the TCP listener
	URI       string    `json:"uri,omitempty"`
	Device    string    `json:"device,omitempty"`      // /dev/nbdN or /dev/ublkbN
	Mark      string    `json:"device_mark,omitempty"` // what the driver knows of this connection of /dev/nbdN
	PID       int       `json:"pid"`                   // 0: that of a dead process, whose place another one is about to take
	Started   time.Time `json:"started"`
	Taken     time.Time `json:"taken_over,omitzero"` // when this process has taken it over from another one
	Control   string    `json:"control,omitempty"`   // socket for --upgrade
	State     string    `json:"state"`               // "connected", or what is wrong with the way to the target
	Reason    string    `json:"reason,omitempty"`    // why
	Since     time.Time `json:"since"`               // when State became that
	Already   bool      `json:"already_attached,omitempty"`
	Recovered bool      `json:"recovered,omitempty"` // the device was there, of a process that was killed
	Failed    string    `json:"failed,omitempty"`    // what went wrong when the process ended; for Detach
	// Caches are lives of the target's caches, by which the next process of an ublk device finds that one was lost.
	Caches [][16]byte `json:"caches,omitempty"`

	path string
}

// RunDir returns the directory of the records.
func RunDir() string { return runDirOf(os.Geteuid()) }

func runDirOf(uid int) string {
	if d := os.Getenv("ISER_RUN_DIR"); d != "" {
		return d
	}
	if uid == 0 {
		return "/run/softiser-attach" // that of the units; /run/softiser is the target's, which is another user
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "softiser")
	}
	return filepath.Join(os.TempDir(), "softiser-"+strconv.Itoa(uid))
}

// makeRunDir creates the run directory; somebody else's is not used.
func makeRunDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w (name another with --run-dir or ISER_RUN_DIR)", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("run directory %s belongs to somebody else (name another with --run-dir or ISER_RUN_DIR)", dir)
	}
	return nil
}

// nameOf is the file name of a volume's record: short, so that the socket's
// path stays below the 108 bytes that the kernel allows.
func nameOf(url string) string {
	sum := sha256.Sum256([]byte(url))
	return "attach-" + hex.EncodeToString(sum[:6])
}

func recordPath(dir, url string) string { return filepath.Join(dir, nameOf(url)+".json") }

// The lock of a record is exclusive where a process serves, and shared, for a moment, where one looks whether another
// does, or removes what a dead one has left.

// served reports whether a process serves that has the lock of f. If not, this one shares the lock until f is closed.
func served(f *os.File) bool {
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// sameFile reports whether f is what there is at path.
func sameFile(f *os.File, path string) bool {
	a, aerr := f.Stat()
	b, berr := os.Stat(path)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// lockRecord takes the record file at path for this process. When another
// process serves by it, its record is returned instead.
func lockRecord(path string) (f *os.File, held *Record, err error) {
	return lockRecordBy(func() { time.Sleep(20 * time.Millisecond) }, path)
}

// lockRecordBy pauses where it has to look again: the lock is another one's who does not serve, or has written nothing yet.
func lockRecordBy(pause func(), path string) (f *os.File, held *Record, err error) {
	for range 100 {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("attachment record: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			var rec *Record // nil: it is being looked at, or written
			if served(f) {
				rec, _ = readRecord(path)
			}
			f.Close()
			if rec != nil && rec.PID != 0 {
				return nil, rec, nil
			}
			pause()
			continue
		}
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("attachment record %s: %w", path, err)
		}
		// The file may have been removed between open and lock.
		if sameFile(f, path) {
			return f, nil, nil
		}
		f.Close()
	}
	return nil, nil, fmt.Errorf("attachment record %s is held by a process that does not fill it in", path)
}

// write fills the locked record file in.
func (r *Record) write(f *os.File) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	// One write, over the whole of the record before: others read it meanwhile.
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("attachment record: %w", err)
	}
	for int64(len(b)) < st.Size()-1 {
		b = append(b, ' ')
	}
	if _, err := f.WriteAt(append(b, '\n'), 0); err != nil {
		return fmt.Errorf("attachment record: %w", err)
	}
	return nil
}

func readRecord(path string) (*Record, error) { return readRecordBy(os.ReadFile, path) }

// rereads is how often a record is read that makes no sense: it may be growing, and the end
// of the new text was read behind the old one.
const rereads = 100

func readRecordBy(read func(string) ([]byte, error), path string) (*Record, error) {
	for n := 1; ; n++ {
		b, err := read(path)
		if err != nil {
			return nil, err
		}
		r := &Record{path: path}
		if err = json.Unmarshal(b, r); err == nil {
			return r, nil
		}
		if len(b) == 0 || n == rereads {
			return nil, fmt.Errorf("attachment record %s: %w", path, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// alive reports whether the record's process still holds it.
func (r *Record) alive() bool {
	f, err := os.OpenFile(r.path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return served(f)
}

// clean removes a record whose process is gone, and its sockets, unless another process serves by it now. One at a time
// cleans up in a folder, and the record goes last and under its lock: so it is the dead process's that goes, and not
// what another one has put there meanwhile.
func (r *Record) clean() {
	dir := absolute(filepath.Dir(r.path)) // as sockets are named
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	f, err := os.OpenFile(r.path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if syscall.Flock(int(d.Fd()), syscall.LOCK_EX) != nil || served(f) || !sameFile(f, r.path) {
		return
	}
	for _, sock := range []string{r.Socket, r.Control} {
		if sock != "" && strings.HasPrefix(sock, dir+string(filepath.Separator)) {
			os.Remove(sock)
		}
	}
	os.Remove(r.path)
}

// States of an attachment whose process was killed.
const (
	StateKilled    = "killed"    // the device waits for the next process
	StateAbandoned = "abandoned" // the device is there, and no process will serve it again
)

// List returns the live attachments, and those whose process was killed and whose device is
// there (StateKilled, StateAbandoned); records of other dead processes are removed.
func List(dir string) ([]*Record, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "attach-*.json"))
	if err != nil {
		return nil, err
	}
	var live []*Record
	for _, p := range paths {
		r, err := readRecord(p)
		if err != nil {
			continue // being written, or not ours
		}
		if !r.alive() {
			if r.waits() || r.abandoned() {
				live = append(live, r)
				continue
			}
			r.clean()
			continue
		}
		if r.PID != 0 {
			live = append(live, r)
		}
	}
	sort.Slice(live, func(i, k int) bool { return live[i].Started.Before(live[k].Started) })
	return live, nil
}

// dropRecord removes a record, unless it is of a killed process whose device still waits: who
// has failed to attach the volume leaves it to the next one.
func dropRecord(path string) error {
	if r, err := readRecord(path); err == nil && r.waits() {
		return nil
	}
	return os.Remove(path)
}

// waits reports whether the record's device waits for another process, the record's being
// gone, and says so in the record.
func (r *Record) waits() bool {
	if !strings.HasPrefix(r.Device, string(deviceUblk)) {
		return false
	}
	left, state, err := drivers.findUblk(markOf(filepath.Dir(r.path), r.URL))
	if err != nil || left != r.Device || state == ublk.Ended {
		return false
	}
	r.State, r.Reason = StateKilled, "its process was killed; the same attach takes the device again, --detach ends it"
	return true
}

// Find returns the attachment of List that key names: URL, socket, device, URI or
// process id; nil when there is none. Of several those come last whose process was killed.
func Find(dir, key string) (*Record, error) {
	live, err := List(dir)
	if err != nil || key == "" { // which is the device of whoever has none
		return nil, err
	}
	order := func(r *Record) int {
		if r.dead() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(live, func(a, b *Record) int { return order(a) - order(b) })
	for _, r := range live {
		if key == r.URL || absolute(key) == r.Socket || key == r.Device || key == r.URI || key == r.TCP || key == strconv.Itoa(r.PID) {
			return r, nil
		}
	}
	return nil, nil
}
