package attach

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
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
