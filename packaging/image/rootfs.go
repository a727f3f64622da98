package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"time"
)

// programs are what the image has in /usr/bin.
var programs = []string{"iser-target", "iser-initiator"}

// The account that the target runs as: a number that no distribution gives away.
const (
	user  = 65532
	group = 65532
)

// stateDir is where the target writes its state, and volumes are.
const stateDir = "/var/lib/softiser"

// entry is a folder (its name ends with a slash) or a file.
type entry struct {
	name    string // without the slash in front
	mode    int64
	owner   int // user and group
	content []byte
}

// rootfs is the whole file system, parents before what they hold.
func rootfs(bin [][]byte) []entry {
	all := []entry{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nsoftiser:x:%d:\n", group)},
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nsoftiser:x:%d:%d:softiser target:%s:/sbin/nologin\n", user, group, stateDir)},
		{name: "etc/softiser/", mode: 0o755},
		{name: "run/", mode: 0o755},
		{name: "run/softiser/", mode: 0o755, owner: user},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
	}
	for i, name := range programs {
		all = append(all, entry{name: "usr/bin/" + name, mode: 0o755, content: bin[i]})
	}
	return append(all,
		entry{name: "var/", mode: 0o755},
		entry{name: "var/lib/", mode: 0o755},
		entry{name: "var/lib/softiser/", mode: 0o700, owner: user},
	)
}

// writeTar writes entries as a layer has them: nothing of this machine is in it.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)), ModTime: at, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.content); err != nil {
			return err
		}
	}
	return t.Close()
}

// machines are the architectures that an image can be for: as OCI and as ELF name them.
var machines = map[string]struct {
	machine elf.Machine
	variant string
}{
	"amd64": {elf.EM_X86_64, ""},
	"arm64": {elf.EM_AARCH64, "v8"},
}

// fits reports what keeps a program from running in an image for arch: another processor's
// code, or a loader that the image does not have.
func fits(program []byte, arch string) error {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	defer f.Close()
	if want := machines[arch].machine; f.Machine != want {
		return fmt.Errorf("it is for %v, not %v", f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("it is not static (CGO_ENABLED=0)")
		}
	}
	return nil
}
