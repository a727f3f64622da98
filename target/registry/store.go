package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/config"
	"softiser/lvm"
)

// stores opens the backing stores of volumes.
type stores struct {
	log  *zap.Logger
	pool *blockdev.Pool
	lvs  lvm.Manager // volume groups, opened with the first volume that needs one
	// epochs is where volumes remember their caches; see epochDir. Set before the first
	// volume is opened.
	epochs string
	handed map[string]*Handed // by another process and not opened yet; used while this one starts
}

func newStores(log *zap.Logger, pool *blockdev.Pool) *stores {
	s := &stores{log: log, pool: pool}
	s.lvs.Config = lvm.Config{Pool: pool, EpochDir: func() string { return s.epochs }, Notice: func(text string) { log.Warn(text) }, Open: func(path string) (blockdev.Device, error) {
		return open.Open(open.Spec{Path: path, Pool: pool, EpochDir: s.epochs})
	}}
	return s
}

// open opens the backing store of a volume and logs what became of its size.
func (s *stores) open(v config.Volume) (blockdev.Device, error) {
	have, err := storeSize(v)
	known := err == nil // otherwise it is created, or opening it says what is wrong
	fitted := v
	if known {
		fitted.Size = fit(v, have)
	}
	dev, err := openDevice(fitted, s.takeHanded(v.Name), s.pool, &s.lvs, s.epochs)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	if known {
		for _, text := range remarks(v, have, config.Size(dev.Info().Size)) {
			s.log.Warn(text, zap.String("volume", v.Name), zap.String("path", v.Path))
		}
	}
	return dev, nil
}

// fit is the size with which to open a file that has a size already. That of the
// configuration is what a file has at least (ADR 105): one that has grown, by
// `iser-target resize` above all, is served whole, because initiators have written
// behind its old end.
func fit(v config.Volume, have config.Size) config.Size {
	if whole := have - have%max(v.BlockSize, 512); v.Type == config.VolumeFile && v.Size != 0 && v.Size < whole {
		return whole
	}
	return v.Size
}

// remarks says where the size that is served differs from what the configuration, or
// the file or device that had so many bytes before, would make one expect.
func remarks(v config.Volume, have, served config.Size) (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if served > have {
		say("the file had %s; it has been grown to the configured %s", have, v.Size)
	}
	if v.Size != 0 && served > v.Size {
		say("the file has %s, more than the configured %s; it is served whole", served, v.Size)
	}
	if have > served && (v.Type == config.VolumeFile || v.Size == 0) {
		say("the last %d bytes are not served, because they are no whole block", int64(have-served))
	}
	return all
}

var errNoStore = errors.New("the volume is not in one file or device")

// storeSize returns the size of the file or block device behind a volume.
func storeSize(v config.Volume) (config.Size, error) {
	if v.Type != config.VolumeFile && v.Type != config.VolumeRaw {
		return 0, errNoStore
	}
	// O_NONBLOCK: do not hang on a FIFO that somebody put there.
	f, err := os.OpenFile(v.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	return config.Size(n), err
}

// openDevice opens the backing store of a volume.
func openDevice(v config.Volume, handed *blockdev.Opened, pool *blockdev.Pool, lvs *lvm.Manager, epochs string) (blockdev.Device, error) {
	if v.Type == config.VolumeLVM {
		s := lvm.Spec{VG: v.VG, LV: v.LV}
		for _, p := range v.Devices { // lvm commands, in folders of their own, name them as well
			if abs, err := filepath.Abs(p); err == nil {
				p = abs
			}
			s.Devices = append(s.Devices, p)
		}
		if v.Create {
			s.Size, s.Stripes, s.StripeSize = int64(v.Size), v.Stripes, int64(v.StripeSize)
			s.Pool, s.PoolSize, s.ErrorWhenFull = v.Pool, int64(v.PoolSize), v.ErrorWhenFull
		}
		dev, err := lvs.Open(s)
		if err != nil {
			return nil, err
		}
		return dev, nil
	}
	s := open.Spec{
		Name: v.Name, Path: v.Path, Size: int64(v.Size), BlockSize: int(v.BlockSize), PhysBlockSize: int(v.PhysBlockSize),
		ReadOnly: v.ReadOnly, WriteThrough: v.WriteThrough, Prealloc: v.Preallocate, MustExist: !v.Create,
		Rotational: v.Rotational, Lock: v.Lock, HugePages: v.HugePages, Pool: pool, EpochDir: epochs, Opened: handed,
		Fault: open.Fault{
			ReadDelay: v.Fault.ReadDelay.D(), WriteDelay: v.Fault.WriteDelay.D(),
			ErrorRate: v.Fault.ErrorRate, Seed: uint64(v.Fault.Seed),
		},
	}
	var err error
	if s.Type, err = open.ParseType(string(v.Type)); err != nil {
		return nil, err
	}
	dev, err := open.Open(s)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, hintAt(err, v.ReadOnly, syscall.Access(v.Path, readOK)))
	}
	return dev, nil
}

// readOK is R_OK of access(2).
const readOK = 4

// hintAt says what to do about a file that may not be opened. unreadable is why it cannot be
// read either; nil: it can.
func hintAt(err error, readOnly bool, unreadable error) string {
	denied := errors.Is(err, fs.ErrPermission)
	switch {
	case unreadable == nil && !readOnly && (denied || errors.Is(err, syscall.EROFS)):
		return "; with read_only: true (or ,ro) it is served without writing to it"
	case denied && errors.Is(unreadable, fs.ErrPermission):
		return fmt.Sprintf("; iser-target runs as user %d, who may not read it (chown, chmod)", os.Geteuid())
	}
	return ""
}
