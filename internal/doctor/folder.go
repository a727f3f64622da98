package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Folder is the check that what is to be remembered can be written to a folder, and lasts;
// "": there is none.
func Folder(dir string) Check {
	return Check{"state_dir", func(h *Host) Finding {
		if dir == "" {
			return note("none").
				costs("persistent reservations and saved mode pages end with the process, and there is no SANITIZE or FORMAT UNIT").
				mend("install -d -o softiser -g softiser -m 700 /var/lib/softiser   # then admin.state_dir: /var/lib/softiser")
		}
		fi, err := os.Stat(dir)
		create := "install -d -o softiser -g softiser -m 700 " + dir
		switch {
		case err != nil:
			return failed("%v", err).costs("serve does not start").mend("%s", create)
		case !fi.IsDir():
			return failed("%s is no folder", dir).costs("serve does not start").mend("mv %s %[1]s.old && %s", dir, create)
		}
		const write, search = 2, 1
		if err := syscall.Access(dir, write|search); err != nil {
			return failed("%s: %v", dir, err).costs("serve does not start, if it is this user's").mend("%s", create)
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
