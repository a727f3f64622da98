// Package mem is a volume in RAM. Its memory is a memfd, mapped once and lent
// directly; what was never written is lent as a shared zero region, so that a
// scan of a sparse volume does not make it grow, and a discard frees memory.
//
// Nothing survives the process, the volume's identity (Info.ID) neither, unless the process
// hands it to its successor (Config.Opened): one that is opened again is empty, and an initiator that comes back must find another disk
// rather than the one that it wrote to without its content.
//
// Info.WriteCache is false all the same: a flush could not make a write any more
// durable than it is, and initiators then do not waste commands on it.
package mem

import (
	"crypto/rand"
	"fmt"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/internal/backing"
)

// Config describes a memory volume. Zero fields have the defaults stated.
type Config struct {
	Name          string // for messages; "memory"
	Size          int64  // bytes
	BlockSize     int    // 512
	PhysBlockSize int    // 4096
	ReadOnly      bool
	// HugePages asks for transparent huge pages: fewer page faults and TLB
	// misses, but each 2 MiB that is touched is allocated as a whole.
	HugePages  bool
	Rotational bool           // report that seeks cost
	Lock       bool           // keep what is in memory there (mlock); counts against RLIMIT_MEMLOCK
	Pool       *blockdev.Pool // blockdev.DefaultPool
	// Opened is a memory volume of another process, which goes on with its content and its
	// identity. Its descriptor is taken over, also when Open fails.
	Opened *blockdev.Opened
}

// Device is an open memory volume. The methods are those of blockdev.Device,
// Lender, Resizer and Mapped.
type Device struct{ *backing.Volume }

// Open makes a volume of zeroes, unless it goes on with that of another process.
func Open(cfg Config) (*Device, error) {
	if cfg.Name == "" {
		cfg.Name = "memory"
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.PhysBlockSize == 0 {
		cfg.PhysBlockSize = max(4096, cfg.BlockSize)
	}
	fd, id := -1, "memory:"+cfg.Name+" "+rand.Text()
	if o := cfg.Opened; o != nil {
		fd, id, cfg.Size = o.FD, o.ID, o.Size
	}
	err := blockdev.CheckGeometry(cfg.Size, cfg.BlockSize, cfg.PhysBlockSize)
	if err == nil && fd < 0 {
		fd, err = memory(cfg.Name, cfg.Size)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("memory volume %s: %w", cfg.Name, err)
	}
	v, err := backing.Open(backing.Config{
		FD:   fd,
		Path: cfg.Name,
		Pool: cfg.Pool,
		Info: blockdev.Info{
			Size:          cfg.Size,
			BlockSize:     cfg.BlockSize,
			PhysBlockSize: cfg.PhysBlockSize,
			ReadOnly:      cfg.ReadOnly,
			Discard:       true,
			DiscardAlign:  unix.Getpagesize(),
			ZeroesOnTrim:  true,
			Thin:          true,
			Rotational:    cfg.Rotational,
			Resident:      cfg.Lock,
			InPlace:       true,
			Backend:       "mem",
			ID:            id,
		},
		Volatile:   true,
		HolesKnown: true,
		SeekHoles:  true,
		HugePages:  cfg.HugePages,
		Lock:       cfg.Lock,
		Opened:     cfg.Opened,
		Truncate:   func(n int64) error { return unix.Ftruncate(fd, n) },
		Punch: func(off, n int64) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Device{v}, nil
}

// memory makes a file of zeroes that is nowhere but in memory.
func memory(name string, size int64) (int, error) {
	fd, err := unix.MemfdCreate("softiser:"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("setting the size to %d bytes: %w", size, err)
	}
	return fd, nil
}
