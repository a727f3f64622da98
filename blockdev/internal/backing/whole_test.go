package backing

import (
	"bytes"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
)

// TestReadersSeeWholeBlocks: the kernel copies a block into its cache while another
// system call copies it out. Here each stops half-way; the other one must wait.
func TestReadersSeeWholeBlocks(t *testing.T) {
	const block, half = 4096, 2048
	before, after := bytes.Repeat([]byte{'a'}, block), bytes.Repeat([]byte{'b'}, block)
	for _, c := range []struct {
		name string
		read func(v *Volume) []byte
	}{
		{"ReadAt", func(v *Volume) []byte {
			p := make([]byte, block)
			if _, err := v.ReadAt(p, 0); err != nil {
				t.Error(err)
			}
			return p
		}},
		{"staged lease", func(v *Volume) []byte {
			// Beside a lease for writing, a lease for reading is a copy.
			var w, l blockdev.Lease
			if err := v.LeaseWrite(&w, block, block, blockdev.Wait); err != nil {
				t.Error(err)
			}
			defer w.Release()
			if err := v.LeaseRead(&l, 0, 2*block, blockdev.Wait); err != nil {
				t.Error(err)
				return nil
			}
			defer l.Release()
			if l.Direct {
				t.Error("the lease is direct: the case tests nothing")
			}
			return bytes.Clone(l.Segs[0][:block])
		}},
	} {
		for _, writing := range []bool{true, false} {
			name := c.name + " inside a write"
			if !writing {
				name = c.name + ", a write inside it"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stopped, goOn := make(chan bool), make(chan bool)
					armed := false
					k := linux
					k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
						if !armed || !writing || off != 0 {
							return linux.pwritev(fd, bufs, off)
						}
						linux.pwritev(fd, [][]byte{bufs[0][:half]}, 0)
						stopped <- true
						<-goOn
						linux.pwritev(fd, [][]byte{bufs[0][half:]}, half)
						return len(bufs[0]), nil
					}
					k.pread = func(fd int, p []byte, off int64) (int, error) {
						if !armed || writing || off != 0 {
							return linux.pread(fd, p, off)
						}
						linux.pread(fd, p[:half], 0)
						stopped <- true
						<-goOn
						linux.pread(fd, p[half:], half)
						return len(p), nil
					}
					v, _ := openFile(t, 1<<20, k, func(c *Config) { c.StoreSize = nil })
					write := func(p []byte) {
						if _, err := v.WriteAt(p, 0); err != nil {
							t.Error(err)
						}
					}
					write(before)
					armed = true
					var got []byte
					done := make(chan bool, 2)
					read := func() { got = c.read(v); done <- true }
					overwrite := func() { write(after); done <- true }
					first, second := overwrite, read
					if !writing {
						first, second = read, overwrite
					}
					go first()
					<-stopped
					go second()
					synctest.Wait()
					goOn <- true
					<-done
					<-done
					if !bytes.Equal(got, before) && !bytes.Equal(got, after) {
						t.Errorf("a reader got the first half of %q, the second half of %q", got[0], got[block-1])
					}
				})
			})
		}
	}
}
