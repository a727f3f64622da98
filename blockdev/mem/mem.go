// Package mem is a volume in RAM. Its memory is a memfd, mapped once and lent
// directly; what was never written is lent as a shared zero region, so that a
// scan of a sparse volume does not make it grow, and a discard frees memory.
//
// Nothing survives the process, the volume's identity (Info.ID) neither: one that is
// opened again is empty, and an initiator that comes back must find another disk
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
}

// Device is an open memory volume. The methods are those of blockdev.Device,
// Lender, Resizer and Mapped.
type Device struct{ *backing.Volume }

// Open makes a volume of zeroes.
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
	if err := blockdev.CheckGeometry(cfg.Size, cfg.BlockSize, cfg.PhysBlockSize); err != nil {
		return nil, fmt.Errorf("memory volume %s: %w", cfg.Name, err)
	}
	fd, err := unix.MemfdCreate("softiser:"+cfg.Name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory volume %s: memfd_create: %w", cfg.Name, err)
	}
	if err := unix.Ftruncate(fd, cfg.Size); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory volume %s: setting the size to %d bytes: %w", cfg.Name, cfg.Size, err)
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
			Backend:       "mem",
			ID:            "memory:" + cfg.Name + " " + rand.Text(),
		},
		Volatile:   true,
		HolesKnown: true,
		SeekHoles:  true,
		HugePages:  cfg.HugePages,
		Lock:       cfg.Lock,
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
