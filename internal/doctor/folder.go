package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Folder is the check that what is to be remembered can be written to a folder, and lasts;
// "": there is none. probe says why serve would not start with it, and why nothing could be
// kept there.
func Folder(dir string, probe func() (start, save error)) Check {
	return Check{"state_dir", func(h *Host) Finding {
		if dir == "" {
			return note("none").
				costs("persistent reservations and saved mode pages end with the process, and there is no SANITIZE or FORMAT UNIT").
				mend("install -d -o softiser -g softiser -m 700 /var/lib/softiser   # then admin.state_dir: /var/lib/softiser")
		}
		create := "install -d -o softiser -g softiser -m 700 " + dir
		fi, err := os.Stat(dir)
		if err == nil && !fi.IsDir() {
			create = fmt.Sprintf("mv %s %[1]s.old && %s", dir, create)
		}
		start, save := probe()
		switch {
		case start != nil:
			return failed("%v", start).costs("serve does not start, if it is this user's").mend("%s", create)
		case save != nil:
			return failed("%v", save).costs("serve starts, and persistent reservations, saved mode pages, SANITIZE and FORMAT UNIT fail, if it is this user's").mend("%s", create)
		case err != nil:
			return note("%v", err).costs("serve makes it").mend("%s", create)
		}
		kind, err := h.fileSystem(dir)
		switch {
		case err != nil:
			return unknown(err)
		case kind == "tmpfs" || kind == "ramfs" || kind == "overlay":
			return warning("%s is on %s", dir, kind).
				costs("what is there does not outlive the machine or the container, and reservations are promised to").
				mend("findmnt -t ext4,xfs,btrfs   # a folder on one of these")
		case strings.HasPrefix(kind, "nfs") || kind == "cifs" || kind == "9p" || strings.HasPrefix(kind, "fuse"):
			return note("%s is on %s", dir, kind).
				costs("whether what is written survives a loss of power is for that server to say")
		}
		return ok("%s is on %s", dir, kind)
	}}
}

// fileSystem is the type of the file system that a folder is on.
func (h *Host) fileSystem(dir string) (kind string, err error) {
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	mounts, err := h.read(h.process("mountinfo"))
	if err != nil {
		return "", err
	}
	longest := ""
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		at, of := strings.Fields(before), strings.Fields(after)
		if len(at) < 5 || len(of) < 1 {
			continue
		}
		m := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(at[4])
		if (m == dir || strings.HasPrefix(dir, strings.TrimSuffix(m, "/")+"/")) && len(m) >= len(longest) {
			longest, kind = m, of[0] // the last one covers those before it
		}
	}
	return kind, nil
}
