package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"softiser/blockdev"
	"softiser/config"
	"softiser/lvm"
	"softiser/lvm/vg"
)

// Probe finds out whether serve could open a volume, without creating or changing
// anything. A lock is no obstacle when held says that the volume is open in the target
// that is to serve it. The remarks are what serve would log.
func Probe(v config.Volume, held func(config.Volume) bool) (all []string, err error) {
	switch v.Type {
	case config.VolumeFile, config.VolumeRaw:
		all, err = probeStore(v)
	case config.VolumeLVM:
		all, err = probeLVM(v)
	}
	if errors.Is(err, blockdev.ErrInUse) && held(v) {
		return all, nil
	}
	if err != nil {
		err = fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return all, err
}

// probeStore opens the store of a volume as serving would, without changing it, and
// returns what would be warned of.
func probeStore(v config.Volume) (all []string, err error) {
	have, err := storeSize(v)
	if errors.Is(err, fs.ErrNotExist) && v.Type == config.VolumeFile && v.Create {
		return nil, creatable(v.Path)
	}
	p := v
	// Opened for writing it would get another time of change.
	p.ReadOnly, p.WriteThrough, p.Create, p.Preallocate, p.Lock, p.HugePages = true, false, false, false, false, false
	p.Size = fit(v, have)
	grows := v.Type == config.VolumeFile && !v.ReadOnly && err == nil && have < v.Size
	if grows {
		p.Size = 0
		if v.Preallocate {
			if err := room(filepath.Dir(v.Path), v.Size-have); err != nil {
				return nil, err
			}
		}
		if have < max(v.BlockSize, 512) {
			return remarks(v, have, v.Size), writable(v)
		}
	}
	dev, err := openDevice(p, nil, blockdev.DefaultPool(), nil, "")
	if errors.Is(err, fs.ErrNotExist) && v.Type == config.VolumeFile && !v.ReadOnly {
		err = fmt.Errorf("%w, and it may not be created (create: true in a configuration)", err)
	}
	if err != nil {
		return nil, err
	}
	served := config.Size(dev.Info().Size)
	if grows {
		served = v.Size
	}
	if err := dev.Close(); err != nil || v.ReadOnly {
		return remarks(v, have, served), err
	}
	return remarks(v, have, served), writable(v)
}

// creatable reports what keeps serve from making a file.
func creatable(path string) error {
	dir := filepath.Dir(path)
	if err := syscall.Access(dir, 3 /* W_OK|X_OK */); err != nil {
		return fmt.Errorf("%s cannot be created: %w", path, &fs.PathError{Op: "access", Path: dir, Err: err})
	}
	return nil
}

// writable reports what keeps serve from opening an existing file or device for writing.
func writable(v config.Volume) error {
	flags := os.O_RDWR
	if v.Type == config.VolumeRaw {
		// Not for writing: udev looks at a device again when such a descriptor is closed.
		flags = os.O_RDONLY | syscall.O_EXCL
	}
	f, err := os.OpenFile(v.Path, flags|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%s is mounted, or used by another program: %w", v.Path, blockdev.ErrInUse)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if v.Type == config.VolumeRaw {
		return nil
	}
	return unlocked(f)
}

// unlocked reports blockdev.ErrInUse when somebody has the file locked.
func unlocked(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%s is open in another program: %w", f.Name(), blockdev.ErrInUse)
	}
	return err
}

// room reports that a file system lacks n free bytes.
func room(dir string, n config.Size) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if free := config.Size(st.Bavail) * config.Size(st.Bsize); free < n {
		return fmt.Errorf("preallocate: %s are wanted and %s has %d bytes free", n, dir, int64(free))
	}
	return nil
}

// probeLVM reads the labels and metadata of a group. Whether its disks can be locked
// and its volume activated only an open shows.
func probeLVM(v config.Volume) (all []string, err error) {
	var disks []*vg.Disk
	missing := 0
	for _, path := range v.Devices {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) && v.Create {
			missing++
			if err := creatable(path); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, err
		}
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
			if err := unlocked(f); err != nil {
				return nil, err
			}
		}
		d, err := vg.NewReader(path, f, size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		disks = append(disks, d)
	}
	scan := vg.ScanDisks(vg.Config{}, disks)
	g, err := scan.Find(v.VG)
	switch {
	case errors.Is(err, vg.ErrNotFound) && v.Create:
		for _, g := range scan.Groups {
			return nil, fmt.Errorf("volume group %s cannot be created: the devices hold %s", v.VG, g.VG.Name)
		}
		return all, nil
	case err != nil:
		return nil, err
	case missing > 0:
		return nil, fmt.Errorf("volume group %s is there, but %d of its devices are not", v.VG, missing)
	}
	for _, pv := range g.VG.PVs {
		if _, err := g.Disk(pv); err != nil {
			all = append(all, err.Error()) // what matters if the volume lies there
		}
	}
	if lv := g.VG.LV(v.LV); lv != nil {
		return all, lvm.Servable(g.VG, lv)
	}
	if !v.Create {
		return nil, fmt.Errorf("logical volume %s/%s %w", v.VG, v.LV, vg.ErrNotFound)
	}
	if v.Pool != "" && v.PoolSize == 0 && g.VG.LV(v.Pool) == nil {
		return nil, fmt.Errorf("thin pool %s/%s %w; create it with `iser-target lvm lvcreate -T`, or say pool_size", v.VG, v.Pool, vg.ErrNotFound)
	}
	return all, nil
}
