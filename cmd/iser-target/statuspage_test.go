package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/loopback"
)

// browse loads a page in a browser, which runs it for some (virtual) seconds, and returns what the
// page has become and what the browser said.
func browse(t *testing.T, chromium, url string, options ...string) (dom, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr",
		"--user-data-dir=" + t.TempDir(), "--window-size=1200,900", "--virtual-time-budget=12000"}, options...)
	c := exec.CommandContext(ctx, chromium, append(args, url)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	return out.String(), errs.String()
}

// In a browser the page is live, its plots are drawn of what /metrics counts, and its policy
// forbids nothing that it needs. (What it is without JavaScript is what the package's own tests
// look at: this browser's dump and picture are JavaScript's work, too.)
func TestStatusPageInABrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium (the Debian package)")
	}
	metrics, addr := loopback.FreeAddr(t), loopback.FreeAddr(t)
	f, _ := configFile(t, t.TempDir(), fmt.Sprintf(`
portals: [{listen: %q}]
volumes: [{name: disk, type: memory, size: 1MiB}, {name: gone, type: file, path: gone.img}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: disk}, {lun: 5, volume: gone}]}]
admin: {metrics: %q}
`, addr, metrics))
	start(t, "--config", f)
	defer http.DefaultClient.CloseIdleConnections()
	l, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: "iqn.2026-11.test:a"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	load := make(chan error, 1)
	go func() { // something to be drawn
		for ctx.Err() == nil {
			if _, err := l.ReadAt(make([]byte, 4096), 0); err != nil {
				load <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
		load <- nil
	}()
	dom, said := browse(t, chromium, "http://"+metrics+"/", "--dump-dom")
	cancel()
	if err := <-load; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"live, every 2 s", "LUN 5 of iqn.2026-11.test:a", "<figcaption>Throughput", `<polyline class="read"`, "iSCSI/TCP"} {
		if !strings.Contains(dom, want) {
			t.Errorf("there is no %q in\n%s", want, dom)
		}
	}
	if strings.Contains(dom, "not up to date") || strings.Contains(said, "Content Security Policy") || strings.Contains(said, "Uncaught") {
		t.Errorf("the browser says\n%s", said)
	}
}
