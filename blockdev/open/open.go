// Package open makes a block device from a typed description, or from the short
// text form of the command line:
//
//	./disk0.img,size=1GiB          a file, created if it does not exist
//	/dev/vg0/lv1,ro                a block device
//	memory,size=512MiB,block=4096  RAM
//	null,size=1TiB                 reads zeroes, forgets writes
package open

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/blockdev/mem"
	"softiser/blockdev/null"
	"softiser/blockdev/raw"
)

// Type is the kind of a backing store.
type Type uint8

const (
	// Auto is Raw where Path is a block device, and File otherwise.
	Auto   Type = iota
	File        // package file
	Raw         // a block device: package raw
	Memory      // package mem
	Null        // package null
)

var typeNames = [...]string{Auto: "auto", File: "file", Raw: "raw", Memory: "memory", Null: "null"}

// String returns the name used in configurations.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// ParseType is the inverse of String; "" is Auto.
func ParseType(s string) (Type, error) {
	if s == "" {
		return Auto, nil
	}
	for t, name := range typeNames {
		if s == name {
			return Type(t), nil
		}
	}
	return 0, fmt.Errorf("volume type %q is not known; it is file, raw, memory or null", s)
}

// Spec describes a volume. Zero fields have the defaults of the backends.
type Spec struct {
	Type          Type
	Name          string // of memory and null volumes: their identity
	Path          string // of files and devices
	Size          int64  // bytes; 0: that of the existing file or device
	BlockSize     int    // bytes: 512 or 4096
	PhysBlockSize int    // bytes
	ReadOnly      bool
	WriteThrough  bool // every write is durable before it completes
	Prealloc      bool // reserve the space of a file
	HugePages     bool // ask for transparent huge pages
	MustExist     bool // do not create a missing file
	Rotational    bool // report that seeks cost, whatever the disk below says
	Lock          bool // keep what is in memory there (mlock)
	Fault         Fault
	Pool          *blockdev.Pool
	EpochDir      string // of files and devices: where Info.CacheID is remembered
	// Opened is the store as another process has handed it over; its descriptor is taken
	// over, also when Open fails. Null volumes have none.
	Opened *blockdev.Opened
}

// Fault makes a volume misbehave on purpose; the zero value does not.
type Fault struct {
	ReadDelay, WriteDelay time.Duration
	ErrorRate             float64 // share of commands that fail with a medium error
	Seed                  uint64
}

// rules translates a Fault for package faulty.
func (f *Fault) rules() (rules []faulty.Rule) {
	if f.ReadDelay > 0 {
		rules = append(rules, faulty.Rule{Op: faulty.Read, Delay: f.ReadDelay})
	}
	if f.WriteDelay > 0 {
		rules = append(rules, faulty.Rule{Op: faulty.Write, Delay: f.WriteDelay})
	}
	if f.ErrorRate > 0 {
		rules = append(rules, faulty.Rule{Op: faulty.Read | faulty.Write, Chance: f.ErrorRate, Err: blockdev.ErrMedium})
	}
	return rules
}

// Resolve returns the type that Open would use.
func (s *Spec) Resolve() Type {
	if s.Type != Auto {
		return s.Type
	}
	if fi, err := os.Stat(s.Path); err == nil && fi.Mode()&os.ModeDevice != 0 {
		return Raw
	}
	return File
}

// Check reports what is wrong with a description without opening anything.
func (s *Spec) Check() error {
	t := s.Resolve()
	switch t {
	case File, Raw:
		if s.Path == "" {
			return fmt.Errorf("a %s volume needs a path", t)
		}
	case Memory, Null:
		if s.Path != "" {
			return fmt.Errorf("a %s volume has no path, but %q is given", t, s.Path)
		}
		if s.Size == 0 {
			return fmt.Errorf("a %s volume needs a size, such as size=1GiB", t)
		}
		if s.WriteThrough {
			return fmt.Errorf("a %s volume cannot be written through: nothing in it survives the process", t)
		}
	default:
		return fmt.Errorf("volume %s is not known", t)
	}
	if s.Prealloc && t != File {
		return fmt.Errorf("a %s volume cannot be preallocated; only files can", t)
	}
	if s.Lock && t == Null {
		return errors.New("a null volume has no memory to lock")
	}
	if s.HugePages && t != Memory && t != File {
		return fmt.Errorf("a %s volume has no huge pages; memory and files on tmpfs have", t)
	}
	bs, phys := s.BlockSize, s.PhysBlockSize
	if bs == 0 {
		bs = 512
	}
	if phys == 0 {
		phys = max(bs, 4096)
	}
	size := s.Size
	if size == 0 {
		size = int64(bs)
	}
	return blockdev.CheckGeometry(size, bs, phys)
}

// Open opens the volume.
func Open(s Spec) (blockdev.Device, error) {
	if err := s.Check(); err != nil {
		if s.Opened != nil {
			unix.Close(s.Opened.FD)
		}
		return nil, err
	}
	d, err := s.open()
	if err != nil {
		return nil, err
	}
	if rules := s.Fault.rules(); rules != nil {
		pool := s.Pool
		if pool == nil {
			pool = blockdev.DefaultPool()
		}
		return faulty.NewPool(d, pool, s.Fault.Seed, rules...), nil
	}
	return d, nil
}

// device keeps the nil pointer of a failed Open from becoming a device that is not
// nil.
func device[D blockdev.Device](d D, err error) (blockdev.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (s *Spec) open() (blockdev.Device, error) {
	switch s.Resolve() {
	case File:
		return device(file.Open(file.Config{Path: s.Path, Size: s.Size, BlockSize: s.BlockSize, PhysBlockSize: s.PhysBlockSize,
			ReadOnly: s.ReadOnly, WriteThrough: s.WriteThrough, Prealloc: s.Prealloc, HugePages: s.HugePages,
			MustExist: s.MustExist, Rotational: s.Rotational, Lock: s.Lock, Pool: s.Pool, EpochDir: s.EpochDir, Opened: s.Opened}))
	case Raw:
		return device(raw.Open(raw.Config{Path: s.Path, Size: s.Size, BlockSize: s.BlockSize, PhysBlockSize: s.PhysBlockSize,
			ReadOnly: s.ReadOnly, WriteThrough: s.WriteThrough, Rotational: s.Rotational, Lock: s.Lock, Pool: s.Pool, EpochDir: s.EpochDir, Opened: s.Opened}))
	case Memory:
		return device(mem.Open(mem.Config{Name: s.Name, Size: s.Size, BlockSize: s.BlockSize, PhysBlockSize: s.PhysBlockSize,
			ReadOnly: s.ReadOnly, HugePages: s.HugePages, Rotational: s.Rotational, Lock: s.Lock, Pool: s.Pool, Opened: s.Opened}))
	case Null:
		return device(null.Open(null.Config{Name: s.Name, Size: s.Size, BlockSize: s.BlockSize, PhysBlockSize: s.PhysBlockSize,
			ReadOnly: s.ReadOnly, Rotational: s.Rotational, Pool: s.Pool}))
	}
	return nil, errors.New("volume type is not known")
}
