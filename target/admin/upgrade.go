package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// UpgradeRequest asks for another process in the place of the running one.
type UpgradeRequest struct {
	// Binary is the program; "": the one that runs, as it is now under its name.
	Binary string `json:"binary,omitempty"`
}

// Upgraded tells what has become of an upgrade.
type Upgraded struct {
	Old   int           `json:"old_pid"`
	New   int           `json:"new_pid"`
	Pause time.Duration `json:"pause_ns"` // until everything was the new process's; the status of that tells when it went on
	// Carried is what went over, Closed what the new process has to open anew, and whose
	// peers have to come again.
	Carried []string `json:"carried"`
	Closed  []string `json:"closed"`

	Over func() `json:"-"` // the answer has been given
}

// handoverProtocol names what follows on a connection to the admin socket.
const handoverProtocol = "softiser-handover"

// handleUpgrade serves the request for an upgrade, and the connection of the process that takes over.
func (b *Backend) handleUpgrade(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/upgrade", func(w http.ResponseWriter, r *http.Request) {
		var q UpgradeRequest
		if !body(w, r, &q) {
			return
		}
		u, err := b.Upgrade(r.Context(), q)
		if err != nil {
			done(w, err)
			return
		}
		answer(w, http.StatusOK, u)
		_ = http.NewResponseController(w).Flush() // who has asked may be gone
		u.Over()
	})
	mux.HandleFunc("POST /v1/handover", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != handoverProtocol {
			answer(w, http.StatusBadRequest, Error{"this is for iser-target serve --takeover"})
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			answer(w, http.StatusInternalServerError, Error{err.Error()})
			return
		}
		u, ok := c.(*net.UnixConn)
		if !ok || rw.Reader.Buffered() > 0 {
			c.Close()
			return
		}
		_, err = io.WriteString(u, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+handoverProtocol+"\r\n\r\n")
		if err != nil {
			c.Close()
			return
		}
		b.HandOver(u)
	})
}

// Upgrade asks the target for another process in its place.
func (c *Client) Upgrade(ctx context.Context, q UpgradeRequest) (u Upgraded, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/upgrade", q, &u)
	c.Close() // the next question is for the new process
	return u, err
}

// TakeOver connects to the running target to take its place; see package
// softiser/internal/handover for what follows.
func TakeOver(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, NewClient(path).unanswered(ctx, err)
	}
	c := nc.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := switchProtocol(ctx, c); err != nil {
		c.Close()
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	return c, nil
}

func switchProtocol(ctx context.Context, c *net.UnixConn) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://iser-target/v1/handover", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", handoverProtocol)
	if err := req.Write(c); err != nil {
		return err
	}
	// The other end says nothing behind the header before it has been spoken to.
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || r.Buffered() > 0 {
		resp.Body.Close()
		return fmt.Errorf("the target that runs knows no handover (%s)", resp.Status)
	}
	return nil
}
