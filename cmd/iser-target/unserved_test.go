package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/loopback"
	"softiser/target"
)

// configFile writes a configuration file in dir and returns its path; ADDR and SOCK
// stand for a free address and a socket in dir.
func configFile(t *testing.T, dir, text string) (file, socket string) {
	t.Helper()
	file, socket = filepath.Join(dir, "c.yaml"), filepath.Join(dir, "s")
	text = strings.NewReplacer("ADDR", loopback.FreeAddr(t), "SOCK", socket).Replace(text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, socket
}

func statusOf(t *testing.T, socket string) (st target.Status) {
	t.Helper()
	code, out := command(t, "status", "--socket", socket, "--json")
	if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil {
		t.Fatal(code, err, out)
	}
	return st
}

// A file that was resized on line is there after a restart, with what was written to
// it: the configuration's size is what it has at least.
func TestResizeAndRestart(t *testing.T) {
	for _, c := range []struct {
		resize []string
		want   int64
	}{
		{[]string{"3MiB"}, 3 << 20},
		{[]string{"--shrink", "512KiB"}, 1 << 20}, // the configuration wins: it grows again
	} {
		t.Run(c.resize[len(c.resize)-1], func(t *testing.T) {
			dir := t.TempDir()
			file, socket := configFile(t, dir, `
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: file, path: d.img, size: 1MiB, create: true}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
admin: {socket: SOCK}
`)
			_, stop := start(t, "--config", file, "--log-level", "error")
			if code, out := command(t, append([]string{"resize", "--socket", socket, "d"}, c.resize...)...); code != 0 {
				t.Fatalf("resize: exit %d\n%s", code, out)
			}
			if code, out := command(t, "reload", "--socket", socket); code != 0 || !strings.Contains(out, "nothing differs") {
				t.Errorf("reload of the unchanged file: exit %d\n%s", code, out)
			}
			if code, out := command(t, "check", "--config", file); code != 0 {
				t.Errorf("check beside the target: exit %d\n%s", code, out)
			}
			stop()
			if code, out := command(t, "check", "--config", file); code != 0 {
				t.Errorf("check: exit %d\n%s", code, out)
			}
			start(t, "--config", file, "--log-level", "error")
			if luns := statusOf(t, socket).Targets[0].LUNs; len(luns) != 1 || luns[0].Size != c.want || luns[0].Error != "" {
				t.Errorf("after the restart: %+v", luns)
			}
			if code, out := command(t, "reload", "--socket", socket); code != 0 {
				t.Errorf("reload after the restart: exit %d\n%s", code, out)
			}
		})
	}
}

// What the configuration names and the target does not serve is nowhere silent.
func TestLUNThatIsNotServed(t *testing.T) {
	dir := t.TempDir()
	metrics := loopback.FreeAddr(t)
	file, socket := configFile(t, dir, fmt.Sprintf(`
portals: [{listen: "ADDR"}]
volumes:
  - {name: gone, type: file, path: gone.img, size: 1MiB}
  - {name: here, type: memory, size: 1MiB}
targets:
  - iqn: iqn.2026-11.test:a
    luns: [{lun: 0, volume: gone}, {lun: 1, volume: here}]
admin: {socket: SOCK, metrics: %q}
`, metrics))
	banner, _ := start(t, "--config", file, "--log-level", "error")
	up := func() string {
		t.Helper()
		var all []string
		for line := range strings.Lines(scrape(t, metrics)) {
			if strings.HasPrefix(line, "iser_target_lun_up{") {
				_, v, _ := strings.Cut(strings.TrimSpace(line), "} ")
				all = append(all, v)
			}
		}
		return strings.Join(all, " ")
	}
	luns := statusOf(t, socket).Targets[0].LUNs
	if len(luns) != 2 || luns[0].LUN != 0 || luns[0].Volume != "gone" || !strings.Contains(luns[0].Error, "gone.img") || luns[1].Error != "" {
		t.Errorf("status --json: %+v", luns)
	}
	code, out := command(t, "status", "--socket", socket)
	for what, s := range map[string]string{"status": out, "the banner": banner.String()} {
		if code != 0 || !strings.Contains(s, "NOT SERVED") || !strings.Contains(s, "gone.img") {
			t.Errorf("%s does not tell:\n%s", what, s)
		}
	}
	if got := up(); got != "0 1" {
		t.Errorf("lun_up %s, want 0 1", got)
	}
	if code, out := command(t, "resize", "--socket", socket, "gone", "2MiB"); code != exitFailure || !strings.Contains(out, "not served") {
		t.Errorf("resize: exit %d\n%s", code, out)
	}
	if code, out := command(t, "check", "--config", file); code != exitDegraded || !strings.Contains(out, "gone.img") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	// It comes, and another one goes by hand.
	if err := os.WriteFile(filepath.Join(dir, "gone.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := command(t, "reload", "--socket", socket); code != 0 {
		t.Errorf("reload: exit %d\n%s", code, out)
	}
	if code, out := command(t, "lun", "remove", "--socket", socket, "iqn.2026-11.test:a", "1"); code != 0 {
		t.Errorf("lun remove: exit %d\n%s", code, out)
	}
	luns = statusOf(t, socket).Targets[0].LUNs
	if len(luns) != 2 || luns[0].Error != "" || !strings.Contains(luns[1].Error, "reload") || up() != "1 0" {
		t.Errorf("afterwards: %+v, lun_up %s", luns, up())
	}
}
