package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkWriteAt is overwriting 4 KiB of a cached file by a volume, and by the system call alone. What the volume asks the
// file system before each write shows in the call as well, see lengthOf. TMPDIR says on which file system.
func BenchmarkWriteAt(b *testing.B) {
	const size = 64 << 20
	path := filepath.Join(b.TempDir(), "volume")
	d, err := Open(Config{Path: path, Size: size})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 4096)
	at := func(i int) int64 { return int64(i%(size/len(p))) * int64(len(p)) }
	for i := range size / len(p) {
		if _, err := d.WriteAt(p, at(i)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("volume", func(b *testing.B) {
		for i := range b.N {
			d.WriteAt(p, at(i))
		}
	})
	b.Run("pwrite", func(b *testing.B) {
		for i := range b.N {
			unix.Pwrite(int(f.Fd()), p, at(i))
		}
	})
}
