package statuspage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"softiser/internal/leaktest"
	"softiser/target"
	"softiser/target/iscsi"
	"softiser/target/nvmf"
	"softiser/target/scsi"
	"softiser/target/volume"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ask(t *testing.T, st target.Status, failure error, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h := Handler(Config{Version: "1.2.3", Status: func(context.Context) (target.Status, error) { return st, failure }})
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// busy is a status with something in every table.
func busy() target.Status {
	read := volume.Latency{Count: 12345, P50: 12_345 * time.Nanosecond, P99: 1_234_567 * time.Nanosecond}
	return target.Status{
		State: "listening", Uptime: 90 * time.Minute, Logins: 1234567, LoginsRefused: 2, Limits: target.LimitStatus{Sessions: 64, PendingLogins: 8},
		Portals: []target.PortalStatus{{Listen: ":3260", Bound: "[::]:3260", Accepted: 11}, {Listen: "10.0.0.1:3260"}},
		Targets: []target.TargetStatus{{Name: "iqn.2026-11.test:a", Alias: "rack 3", Auth: true, Sessions: 1, LUNs: []target.LUNStatus{
			{LUN: 0, Volume: "disk", Backend: "file", Size: 3 << 30, ReadOnly: true, ReadLatency: read, Access: map[uint16]scsi.AccessState{1: scsi.ActiveOptimized, 2: scsi.Standby}},
			{LUN: 7, Volume: "gone", Error: "no such file"},
		}}},
		Subsystems: []target.SubsystemStatus{{NQN: "nqn.2026-11.test:b", TLS: true, Namespaces: []target.NamespaceStatus{
			{NSID: 1, Volume: "disk", Backend: "file", BlockSize: 4096, Leaving: true, Placement: volume.PlacementVerified, Access: map[uint16]volume.PathState{3: volume.PathInaccessible}},
			{NSID: 2, Volume: "away", Error: "the disk is on fire"},
		}}},
		Sessions: []target.SessionStatus{{TSIH: 3, Initiator: "iqn.2026-11.test:host", User: "alice", Target: "iqn.2026-11.test:a", Transport: "iSER", Remote: "10.0.0.9:1234", State: "active", Outstanding: 5, Window: 128},
			{TSIH: 4, Initiator: "iqn.2026-11.test:looker", Transport: "iSCSI/TCP"}},
		Controllers: []target.ControllerStatus{{Subsystem: "nqn.2026-11.test:b", ID: 9, Host: "nqn.2014-08.org.nvmexpress:uuid:1", Transport: "NVMe/TCP", TLS: true, Ready: true, Queues: 4}},
		ISCSI:       []iscsi.TransportStatus{{Name: "iSER", Sessions: 1, Connections: 2}},
		NVMe:        []nvmf.TransportStatus{{Name: "NVMe/TCP", Connections: 5}},
		Volumes: []target.VolumeStatus{{Name: "disk", Backend: "file", Size: 3 << 30, Served: []string{"LUN 0 of iqn.2026-11.test:a"},
			Stats: volume.Stats{Reads: 4321, ReadErrors: 2, WriteErrors: 3, Throttling: volume.Throttling{Commands: 99}},
			Reservation: &target.ReservationStatus{Type: "write exclusive", Generation: 8, Registrants: []target.RegistrantStatus{
				{Wire: "NVMe", Initiator: "nqn.holder", HostID: "id-1", Key: "0x1f", Holder: true}, {Wire: "iSCSI", Initiator: "iqn.other", Key: "0x2f"}}}}},
		Groups: []target.GroupStatus{{Name: "g1", State: "stuck", Error: "the other node does not let go"}},
		Reload: &target.ReloadStatus{Error: "line 3: no"},
	}
}

// text is what a reader sees of a page.
func text(page string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")), " ")
}

// Everything that the issue of the page is about stands in it, what is not served first.
func TestPage(t *testing.T) {
	w := ask(t, busy(), nil, "/")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatal(w.Code, w.Header())
	}
	page := text(w.Body.String())
	for _, want := range []string{
		"listening up 1h30m0s · version 1.2.3 · logins 1,234,567, refused 2", "sessions 2 of 64",
		"LUN 7 of iqn.2026-11.test:a no such file", "namespace 2 of nqn.2026-11.test:b the disk is on fire",
		"group g1 (stuck) the other node does not let go", "the configuration file line 3: no",
		"disk file 3.0 GiB LUN 0 of iqn.2026-11.test:a 4,321 0 B 0 0 B 5 99",
		"disk: reserved, write exclusive", "holder nqn.holder id-1 0x1f NVMe", "iqn.other 0x2f iSCSI",
		"0 disk file, ro 3.0 GiB 12,345 12.3µs 1.23ms 0 - - standby through group 2", "7 gone not served",
		"1 disk file, verified, leaving 0 B 4096 0 - - 0 - - inaccessible through group 3", "rack 3 · CHAP · 1 sessions", "TLS only",
		"iSER 1 2 0 0 B", "NVMe/TCP 1 5 0 0 B", "3 iqn.2026-11.test:host as alice iqn.2026-11.test:a iSER 10.0.0.9:1234 0s 5/128", "4 iqn.2026-11.test:looker (discovery)",
		"9 nqn.2014-08.org.nvmexpress:uuid:1 nqn.2026-11.test:b NVMe/TCP, TLS", ":3260 [::]:3260 0 11", "10.0.0.1:3260 closed",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("there is no %q in\n%s", want, page)
		}
	}
	if strings.Index(page, "Not served") > strings.Index(page, "Volumes") {
		t.Error("what is not served is not at the top")
	}
}

// A server that has nothing is a page as well.
func TestEmpty(t *testing.T) {
	page := text(ask(t, target.Status{State: "draining"}, nil, "/").Body.String())
	for _, want := range []string{"draining up 0s", "Targets none", "Subsystems none", "nobody is registered"} {
		if !strings.Contains(page, want) {
			t.Errorf("there is no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "Not served") {
		t.Error("something is not served")
	}
}

// The page asks for nothing from elsewhere and has no script or style that its policy would
// have to allow; all of its files say so.
func TestNothingFromElsewhere(t *testing.T) {
	for _, path := range []string{"/", "/page.js", "/page.css"} {
		w := ask(t, busy(), nil, path)
		if w.Code != http.StatusOK || w.Header().Get("Content-Security-Policy") != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		body := strings.ReplaceAll(w.Body.String(), `"http://www.w3.org/2000/svg"`, "") // a name, which nobody asks for
		if m := regexp.MustCompile(`(?i)(https?:)?//[a-z]+\.|<style|\sstyle=|<script>|\son[a-z]+=|javascript:|@import|url\(`).FindString(body); m != "" {
			t.Errorf("%s has %q", path, m)
		}
	}
	for _, path := range []string{"/view.go", "/page.gohtml", "/x", "//page.js"} {
		if w := ask(t, busy(), nil, path); w.Code == http.StatusOK {
			t.Errorf("%s is answered", path)
		}
	}
	w := httptest.NewRecorder()
	Handler(Config{}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	w := ask(t, target.Status{}, errors.New("something holds its locks"), "/")
	if w.Code != http.StatusServiceUnavailable || w.Body.String() != "something holds its locks\n" || w.Header().Get("Content-Security-Policy") != policy {
		t.Error(w.Code, w.Body, w.Header())
	}
}

// What peers have chosen is text, wherever it stands: none of it is markup, none is invisible
// or turns what follows around, and none is endless.
func TestHostileNames(t *testing.T) {
	hostile := "\"'><script>alert(1)</script>\u202e\u200b\x00\xff<img src=x onerror=alert(1)>&amp;" + strings.Repeat("n", 70000)
	st := busy()
	s := &st.Sessions[0]
	s.Initiator, s.Alias, s.User, s.Target, s.Remote, s.ISID = hostile, hostile, hostile, hostile, hostile, hostile
	c := &st.Controllers[0]
	c.Host, c.HostID, c.Subsystem = hostile, hostile, hostile
	r := &st.Volumes[0].Reservation.Registrants[0]
	r.Initiator, r.HostID, r.Node = hostile, hostile, hostile
	st.Targets[0].LUNs[1].Error = hostile
	page := ask(t, st, nil, "/").Body.String()
	for _, bad := range []string{"<script>", "<img", "\u202e", "\u200b", "\x00", "\xff", strings.Repeat("n", nameLimit)} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	if n := strings.Count(page, "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd\ufffd\ufffd&lt;img"); n < 8 {
		t.Errorf("the name stands there %d times", n)
	}
	if len(page) > 40000 {
		t.Errorf("a page of %d bytes", len(page))
	}
}

// However many peers there are, the page stays one that can be read, and says what it leaves out.
func TestTablesEnd(t *testing.T) {
	st := busy()
	for i := range 5000 {
		st.Sessions = append(st.Sessions, target.SessionStatus{TSIH: uint16(i), Initiator: fmt.Sprint("initiator ", i)})
		st.Controllers = append(st.Controllers, target.ControllerStatus{ID: uint16(i), Host: fmt.Sprint("guest ", i)})
		r := st.Volumes[0].Reservation
		r.Registrants = append(r.Registrants, target.RegistrantStatus{Initiator: fmt.Sprint("registrant ", i)})
	}
	page := text(ask(t, st, nil, "/").Body.String())
	for word, want := range map[string]int{"initiator ": rowLimit - 2, "guest ": rowLimit - 1, "registrant ": rowLimit - 2, "and 4802 more": 2, "and 4801 more": 1} {
		if n := len(regexp.MustCompile(word+`\d*`).FindAllString(page, -1)); n != want {
			t.Errorf("%q %d times, want %d", word, n, want)
		}
	}
}
