package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// PartBound is the most that a bundle has of one part, bytes: its end, as that of a log
// matters most.
const PartBound = 1 << 20

// Part is one file of a bundle.
type Part struct {
	Name string
	Read func() ([]byte, error)
}

// WriteBundle makes a compressed archive that only its owner can read, without what mask
// knows. A part that cannot be read is one of the name NAME.error, which says why. The file
// must not be there; after an error it is not.
func WriteBundle(path string, at time.Time, mask *Mask, parts []Part) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(path)
		}
	}()
	if err := f.Chmod(0o600); err != nil { // whatever the umask
		return err
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, p := range parts {
		name := p.Name
		b, err := p.Read()
		if err != nil {
			name, b = name+".error", []byte(err.Error()+"\n")
		}
		// Masked first: a cut could leave the second half of a secret, which nobody knows.
		b = lastOf(mask.Apply(b), PartBound)
		h := &tar.Header{Name: "support/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: at, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return z.Close()
}

// lastOf is at most n bytes, the end of b, from the beginning of a line if it was cut.
func lastOf(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	b = b[len(b)-n-1:]
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[i+1:]
	}
	return b[1:]
}

// ReadEnd reads the last n bytes of a file, from the beginning of a line on.
func ReadEnd(path string, n int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // else of a pipe, which is refused, it would wait for a writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", path)
	}
	from := max(fi.Size()-n-1, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, n+1))
	return lastOf(b, int(n)), err
}

// facts are the files about a host that a bundle has.
var facts = []string{
	"/proc/version", "/proc/cpuinfo", "/proc/meminfo", "/proc/loadavg", "/proc/uptime", "/proc/modules", "/proc/pressure/cpu",
	"/proc/pressure/io", "/proc/pressure/memory", "/proc/net/sockstat", "/proc/net/sockstat6", "/proc/net/snmp", "/proc/net/netstat", "/proc/net/dev", "/proc/partitions",
}

// Facts are the parts about the host and the process.
func (h *Host) Facts() (all []Part) {
	files := append([]string(nil), facts...)
	for _, name := range []string{"limits", "status", "cgroup", "mountinfo", "sched"} {
		files = append(files, h.process(name))
	}
	for _, f := range files {
		all = append(all, Part{f[1:], func() ([]byte, error) {
			s, err := h.read(f)
			return []byte(s + "\n"), err
		}})
	}
	return all
}

// Reports are the parts with what the checks have found.
func Reports(all []Finding) []Part {
	return []Part{{"doctor.txt", func() ([]byte, error) {
		var b bytes.Buffer
		err := Print(&b, all)
		return b.Bytes(), err
	}}}
}
