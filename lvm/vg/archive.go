package vg

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"softiser/internal/durable"
	"softiser/lvm/meta"
)

// Archives are kept as lvm2 keeps them: at least retainMin of each group, and
// all that are younger than retainFor.
const (
	retainMin = 10
	retainFor = 30 * 24 * time.Hour
)

func dirOf(set, def string) (dir string, optional bool) {
	if set == "" {
		return def, true
	}
	return set, false
}

// archive stores the metadata as it is before a change: NAME_00012-4711.vg.
func (c *Config) archive(vg *meta.VG, why string) error {
	if c.ArchiveDir == "-" {
		return nil
	}
	dir, optional := dirOf(c.ArchiveDir, "/etc/lvm/archive")
	old := archivesOf(dir, vg.Name)
	next := 0
	if len(old) > 0 {
		next = old[len(old)-1].index + 1
	}
	path := filepath.Join(dir, fmt.Sprintf("%s_%05d-%d.vg", vg.Name, next, rand.Uint32()))
	if err := c.writeFile(path, vg, why); err != nil {
		if optional && errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	for i, a := range old {
		if len(old)+1-i > retainMin && c.now().Sub(a.time) > retainFor {
			os.Remove(a.path) // an archive that stays longer does no harm
		}
	}
	return nil
}

// backup stores the metadata as it is now, under the group's name.
func (c *Config) backup(vg *meta.VG, why string) error {
	if c.BackupDir == "-" {
		return nil
	}
	dir, optional := dirOf(c.BackupDir, "/etc/lvm/backup")
	err := c.writeFile(filepath.Join(dir, vg.Name), vg, why)
	if optional && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// WriteBackup writes what vgcfgbackup would, into a folder that is there. What is no file (a pipe, /dev/stdout) is written in
// place.
func (g *Group) WriteBackup(path string) error {
	var disks []string
	for _, d := range g.Disks {
		disks = append(disks, d.Path)
	}
	if err := CheckOutput(path, g.VG.Name, disks); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil { // else the error would be that of a name that nobody has given
		return err
	}
	_, is := os.Stat(path)
	f, err := durable.Replace(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	if errors.Is(is, fs.ErrNotExist) {
		if err := f.Chmod(0o600); err != nil {
			return err
		}
	}
	if _, err := f.Write(g.cfg.text(g.VG, "vgcfgbackup")); err != nil {
		return err
	}
	return f.Keep(true)
}

// text is the metadata as a file has it.
func (c *Config) text(vg *meta.VG, why string) []byte {
	return vg.Backup(&meta.Stamp{Description: why, Host: c.HostName(), Time: c.now(), Tool: Tool})
}

func (c *Config) writeFile(path string, vg *meta.VG, why string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".lvm_*")
	if err != nil {
		return err
	}
	_, err = f.Write(c.text(vg, why))
	if err := durable.Put(f, path, err); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

type archived struct {
	path  string
	index int
	time  time.Time
}

func archivesOf(dir, name string) []archived {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []archived
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), name+"_")
		idx, tail, ok2 := strings.Cut(rest, "-")
		n, err := strconv.Atoi(idx)
		if !ok || !ok2 || err != nil || !strings.HasSuffix(tail, ".vg") {
			continue
		}
		a := archived{path: filepath.Join(dir, e.Name()), index: n}
		if fi, err := e.Info(); err == nil {
			a.time = fi.ModTime()
		}
		out = append(out, a)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].index < out[j].index })
	return out
}
