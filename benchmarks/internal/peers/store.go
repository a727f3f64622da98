package peers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// StoreKind is where a volume that is not memory lies.
type StoreKind string

// Kinds of stores. Both file systems and the raw device are on a loop device with direct
// I/O over a file in the directory of the run: each has one page cache above the same disk.
const (
	Ext4 StoreKind = "ext4"
	XFS  StoreKind = "xfs"
	Raw  StoreKind = "loop"
)

// Needs are the programs that make such a store.
func (k StoreKind) Needs() []string {
	if k == Raw {
		return []string{"losetup"}
	}
	return []string{"losetup", "mkfs." + string(k)}
}

// StoreSize is the size of a volume on a store, bytes: what a slow disk fills in some seconds.
const StoreSize = 256 << 20

// Store is a volume's place on a disk.
type Store struct {
	Kind  StoreKind
	Path  string // of the file, or of the loop device
	clean []func()
}

// NewStore makes a store; it needs root. The volume is written once.
func NewStore(e *Env, kind StoreKind) (s *Store, err error) {
	s = &Store{Kind: kind}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	unable := func(out []byte, err error) error {
		return &Unable{fmt.Sprintf("no %s on a loop device (root is needed): %v: %s", kind, err, strings.TrimSpace(string(out)))}
	}
	base := filepath.Join(e.Scratch, fmt.Sprintf("store-%d", rand.Uint32()))
	img, size := base+".img", int64(StoreSize)
	if kind != Raw {
		size = 3 * StoreSize // file systems of less than 300 MB are refused by mkfs.xfs
	}
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		return s, err
	}
	s.clean = append(s.clean, func() { os.Remove(img) })
	if err := os.Truncate(img, size); err != nil {
		return s, err
	}
	loop, err := e.quick("losetup", "--find", "--show", "--direct-io=on", img)
	if err != nil {
		return s, unable(loop, err)
	}
	dev := strings.TrimSpace(string(loop))
	s.clean = append(s.clean, func() { proc.Quick("losetup", "--detach", dev) })
	s.Path = dev
	if kind != Raw {
		dir := base + ".mnt"
		if err := os.Mkdir(dir, 0o700); err != nil {
			return s, err
		}
		s.clean = append(s.clean, func() { os.Remove(dir) })
		for _, argv := range [][]string{{"mkfs." + string(kind), "-q", dev}, {"mount", dev, dir}} {
			if out, err := e.quick(argv...); err != nil {
				return s, unable(out, err)
			}
		}
		s.clean = append(s.clean, func() { proc.Quick("umount", dir) })
		s.Path = filepath.Join(dir, "volume")
		if err := s.Sparse(); err != nil {
			return s, err
		}
	}
	fill := []string{"dd", "if=/dev/urandom", "of=" + s.Path, "bs=1M", fmt.Sprintf("count=%d", StoreSize>>20), "conv=notrunc,fsync"}
	e.note(proc.Spec{Argv: fill, Place: proc.Free})
	_, err = proc.Run(context.Background(), proc.Spec{Argv: fill, Place: proc.Free})
	return s, err
}

func (e *Env) quick(argv ...string) ([]byte, error) {
	e.note(proc.Spec{Argv: argv, Place: proc.Free})
	return proc.Quick(argv...)
}

// Close takes the store away.
func (s *Store) Close() {
	for _, f := range slices.Backward(s.clean) {
		f()
	}
}

// Sparse makes the file anew, as one hole. Preconditions: nobody has it open; it is a file.
func (s *Store) Sparse() error {
	if s.Kind == Raw {
		return errors.New("a loop device has no holes")
	}
	os.Remove(s.Path)
	if err := os.WriteFile(s.Path, nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(s.Path, StoreSize)
}

// Cold writes back what the page cache has of the volume, and drops it. Preconditions: nobody
// has it mapped.
func (s *Store) Cold() error {
	out, err := proc.Quick("dd", "if=/dev/null", "of="+s.Path, "oflag=nocache", "conv=notrunc,fdatasync", "count=0")
	if err != nil {
		return fmt.Errorf("dropping the cache of %s: %w: %s", s.Path, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Volume is the store as TargetConfig.Volume; options are further ones of it.
func (s *Store) Volume(options string) string {
	if s.Kind == Raw {
		return "raw, path: " + s.Path + options
	}
	return "file, path: " + s.Path + options
}

// FioStore loads a store by one of fio's engines, without a target.
func (e *Env) FioStore(ctx context.Context, s *Store, engine string, l Load, more ...string) (result.Values, error) {
	argv := slices.Concat([]string{"fio", "--name=load", "--ioengine=" + engine, "--filename=" + s.Path}, l.pattern(), e.extent(l, "--time_based"),
		[]string{"--thread", "--group_reporting", "--lat_percentiles=1", "--output-format=json", "--fallocate=none"}, more)
	if l.Bytes == 0 && l.Once == 0 {
		argv = append(argv, fmt.Sprintf("--size=%d", StoreSize))
	}
	return e.client(ctx, &Server{}, nil, argv, parseFio)
}

// release takes away the stores that a killed run has left in its directory.
func release(dir string) {
	mounted, _ := filepath.Glob(filepath.Join(dir, "store-*.mnt"))
	for _, m := range mounted {
		proc.Quick("umount", m)
	}
	images, _ := filepath.Glob(filepath.Join(dir, "store-*.img"))
	for _, img := range images {
		out, _ := proc.Quick("losetup", "--noheadings", "--output", "NAME", "--associated", img)
		for _, dev := range strings.Fields(string(out)) {
			proc.Quick("losetup", "--detach", dev)
		}
	}
}
