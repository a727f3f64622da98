package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/helptest"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/scsi"
)

// Completion knows the names of the running target, values of flags and the words of
// --export.
func TestCompletion(t *testing.T) {
	b := newReloadBed(t)
	lun, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:a"})
	if err != nil {
		t.Fatal(err)
	}
	defer lun.Close()
	await.True(t, "the session is listed", func() bool { return len(b.status().Sessions) == 1 })
	t.Chdir(b.dir)
	if err := os.Mkdir(filepath.Join(b.dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	const iqns = "iqn.2026-11.test:a iqn.2026-11.test:b"
	for _, c := range []struct{ words, want string }{
		{"resize --socket SOCK |", "file keep pub"}, // not late, which is not served
		{"resize --socket SOCK f|", "file"},
		{"resize --socket SOCK file |", ""},
		{"session kill --socket SOCK |", "1"},
		{"session release --socket SOCK iqn.2026-11.test:a |", initiator.DefaultInitiatorName()},
		{"session release --socket SOCK iqn.2026-11.test:b |", ""},
		{"lun add --socket SOCK |", iqns},
		{"lun add --socket SOCK iqn.2026-11.test:a |", "3"}, // 2 is late's
		{"lun add --socket SOCK iqn.2026-11.test:b |", "1"},
		{"lun add --socket SOCK iqn.2026-11.test:a 3 x=mem|", "x=memory,size="},
		{"lun remove --socket SOCK iqn.2026-11.test:a |", "0 1"},
		{"lun access --socket SOCK iqn.2026-11.test:a 0 |", "1"},
		{"lun access --socket SOCK iqn.2026-11.test:a 0 1 s|", "standby"},
		{"lun remove --socket /nobody |", ""},
		{"serve --log-level |", "debug error info warn"},
		{"serve --listen 1|", "127.0.0.1:3260"},
		{"serve --export d=|", "d=c.yaml d=file.img d=folder/ d=memory,size= d=null,size="},
		{"serve --export d=fi|", "d=file.img"},
		{"serve --export d=file:f|", "d=file:file.img d=file:folder/"},
		{"serve --export d=file.img,|", "d=file.img,block=4096 d=file.img,block=512 d=file.img,hugepages d=file.img,phys=4096 d=file.img,placement=direct d=file.img,placement=verified d=file.img,prealloc d=file.img,ro d=file.img,size= d=file.img,writethrough"},
		{"serve --export d=memory,size=1GiB,b|", "d=memory,size=1GiB,block=4096 d=memory,size=1GiB,block=512"},
		{"serve --export d=x,ro,size=1GiB,block=512,p|", "d=x,ro,size=1GiB,block=512,phys=4096 d=x,ro,size=1GiB,block=512,placement=direct d=x,ro,size=1GiB,block=512,placement=verified d=x,ro,size=1GiB,block=512,prealloc"},
		{"serve --export d|", ""},
		{"check --config |", "yaml yml"}, // as endings of files
		{"capture --socket SOCK --session |", "1"},
		{"capture --socket SOCK --controller |", ""},
		{"ser|", "serve"},
		{"status --socket SOCK |", ""},
		{"doctor --config |", "yaml yml"},
		{"serve --metrics |", "127.0.0.1:9326"},
		{"lvm lvcreate --type t|", "thin thin-pool"},
		{"lvm vgs --reportformat |", "basic json"},
		{"lvm lvchange --permission |", "r rw"},
		{"lvm export vg/lv --output s|", "s3://"},
		{"session |", "kill list release"},
	} {
		words := strings.Fields(strings.NewReplacer("SOCK", b.sock, " |", " \x00", "|", "").Replace(c.words))
		for i, w := range words {
			words[i] = strings.TrimPrefix(w, "\x00")
		}
		code, out := command(t, append([]string{"__completeNoDesc"}, words...)...)
		var got []string
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "Completion ended") {
				continue
			}
			got = append(got, strings.TrimSpace(line))
		}
		if code != 0 || strings.Join(slices.Sorted(slices.Values(got)), " ") != c.want {
			t.Errorf("%s: exit %d, %q, want %q", c.words, code, got, c.want)
		}
	}
	// What is offered is taken.
	for _, o := range exportOptions {
		if strings.HasSuffix(o, "=") {
			o += "1GiB"
		}
		if _, err := exportVolume("a", "file:x,"+o); err != nil {
			t.Errorf("--export option %s: %v", o, err)
		}
	}
	// And told to who has written another one.
	_, err = exportVolume("a", "file:x,what")
	for _, o := range exportOptions {
		if name, _, _ := strings.Cut(o, "="); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("--export option %s is not in %v", name, err)
		}
	}
	for _, name := range accessStates {
		var s scsi.AccessState
		if err := s.UnmarshalText([]byte(name)); err != nil {
			t.Error(err)
		}
	}
}

// Every flag and argument completes to something that somebody has thought of.
func TestEverythingCompletes(t *testing.T) {
	root := newRoot()
	usage.Tree(root)
	complete(root)
	helptest.Completion(t, root, completed)
}

// A number that several controllers have names none of them.
func TestNamedByID(t *testing.T) {
	got := namedByID([]target.ControllerStatus{{ID: 1, Subsystem: "a"}, {ID: 2, Subsystem: "a"}, {ID: 1, Subsystem: "b"}, {ID: 7, Subsystem: "b"}})
	if !slices.Equal(got, []string{"2", "7"}) {
		t.Errorf("%q", got)
	}
}
