package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"softiser/internal/unixsocket"
	"softiser/target"
)

// ErrNoTarget says that nobody serves the socket.
var ErrNoTarget = errors.New("no target answers on admin socket")

// Client talks to a running target.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client for the socket at path. It does not connect yet.
func NewClient(path string) *Client {
	var d net.Dialer
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", path)
		},
		ReadBufferSize: readBuffer,
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns a snapshot of the target.
func (c *Client) Status(ctx context.Context) (st target.Status, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/status", nil, &st)
	return st, err
}

// PID is the process that has opened the socket, 0 if that cannot be told. After an upgrade it
// is one that has ended.
func (c *Client) PID(ctx context.Context) int {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		return 0
	}
	defer nc.Close()
	p, ok := withPeer(ctx, nc).Value(peerKey{}).(peer)
	if !ok || p.program() == "" {
		return 0
	}
	return p.pid
}

// Kill ends a session.
func (c *Client) Kill(ctx context.Context, tsih uint16) error {
	return c.do(ctx, http.MethodDelete, "/v1/sessions/"+strconv.Itoa(int(tsih)), nil, nil)
}

// Release takes an initiator's name at a target from the user whom it belongs to.
func (c *Client) Release(ctx context.Context, iqn, initiator string) error {
	return c.do(ctx, http.MethodPost, "/v1/targets/"+segment(iqn)+"/initiators/"+segment(initiator)+"/release", nil, nil)
}

// AddLUN adds a LUN to a target.
func (c *Client) AddLUN(ctx context.Context, iqn string, r LUNRequest) error {
	return c.do(ctx, http.MethodPost, luns(iqn), r, nil)
}

// RemoveLUN removes a LUN from a target.
func (c *Client) RemoveLUN(ctx context.Context, iqn string, lun uint16) error {
	return c.do(ctx, http.MethodDelete, luns(iqn)+"/"+strconv.Itoa(int(lun)), nil, nil)
}

// Resize changes the size of a LUN's volume, bytes.
func (c *Client) Resize(ctx context.Context, iqn string, lun uint16, size int64) error {
	return c.do(ctx, http.MethodPut, luns(iqn)+"/"+strconv.Itoa(int(lun))+"/size", ResizeRequest{size}, nil)
}

// SetAccess changes the access state of a LUN through a portal group.
func (c *Client) SetAccess(ctx context.Context, iqn string, lun uint16, r AccessRequest) error {
	return c.do(ctx, http.MethodPut, luns(iqn)+"/"+strconv.Itoa(int(lun))+"/access", r, nil)
}

// Reload makes the target agree with its configuration file, or, with dry, asks
// what that would change, and returns the warnings that the configuration has. A file with
// mistakes is a FileError.
func (c *Client) Reload(ctx context.Context, dry bool) (changes []Change, warnings []string, err error) {
	path := "/v1/reload"
	if dry {
		path += "?dry"
	}
	head, err := c.ask(ctx, http.MethodPost, path, nil, &changes)
	for _, h := range head.Values(warningHeader) {
		if w, err := strconv.Unquote(strings.TrimPrefix(h, warningPrefix)); err == nil {
			warnings = append(warnings, w)
		}
	}
	return changes, warnings, err
}

// ResizeVolume changes the size of a volume, bytes, wherever it is served.
func (c *Client) ResizeVolume(ctx context.Context, volume string, size int64) error {
	return c.do(ctx, http.MethodPut, "/v1/volumes/"+segment(volume)+"/size", ResizeRequest{size}, nil)
}

// Promote makes the target's node the one that has a group of volumes, which is named by
// itself or by a target or subsystem; Demote gives it up.
func (c *Client) Promote(ctx context.Context, name string, q GroupRequest) error {
	return c.do(ctx, http.MethodPost, "/v1/groups/"+segment(name)+"/promote", q, nil)
}

// Demote is the opposite of Promote.
func (c *Client) Demote(ctx context.Context, name string, q GroupRequest) error {
	return c.do(ctx, http.MethodPost, "/v1/groups/"+segment(name)+"/demote", q, nil)
}

// AddNamespace adds a namespace to a subsystem.
func (c *Client) AddNamespace(ctx context.Context, nqn string, r NamespaceRequest) error {
	return c.do(ctx, http.MethodPost, namespaces(nqn), r, nil)
}

// RemoveNamespace removes a namespace from a subsystem.
func (c *Client) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return c.do(ctx, http.MethodDelete, namespaces(nqn)+"/"+strconv.Itoa(int(nsid)), nil, nil)
}

// segment is a name as one part of a path. A server would take . and .. out of the path, with what is before them.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

func namespaces(nqn string) string { return "/v1/subsystems/" + segment(nqn) + "/namespaces" }

func luns(iqn string) string { return "/v1/targets/" + segment(iqn) + "/luns" }

// unanswered says why there is no answer to what was asked under ctx, and what would help.
func (c *Client) unanswered(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("admin socket %s: %w; it belongs to the user that iser-target runs as: become that user, or name the socket of a target of your own with --socket", c.path, syscall.EACCES)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("admin socket %s: the target has not answered in time: %w", c.path, context.DeadlineExceeded)
	case errors.Is(err, syscall.EINVAL) && len(c.path) > unixsocket.MaxPath:
		return fmt.Errorf("%w %s: the path has %d bytes; that of a socket has at most %d", ErrNoTarget, c.path, len(c.path), unixsocket.MaxPath)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w %s; is it running, with --socket or admin.socket set to this path?", ErrNoTarget, c.path)
	case errors.Is(ctx.Err(), context.Canceled): // nobody waits for the answer any more
		return fmt.Errorf("admin socket %s: %w", c.path, context.Canceled)
	}
	return fmt.Errorf("%w %s: %w", ErrNoTarget, c.path, err)
}

// do asks the admin socket: in goes out as JSON, what comes back is read into out.
// Errors of the target are its words.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	_, err := c.ask(ctx, method, path, in, out)
	return err
}

// ask is do that returns the head of an answer that is a success.
func (c *Client) ask(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://iser-target"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return nil, refusal(resp)
	}
	if out == nil {
		return resp.Header, nil
	}
	return resp.Header, json.NewDecoder(resp.Body).Decode(out)
}

// refusal is what an answer that is not a success says.
func refusal(resp *http.Response) error {
	var e Error
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Message == "" {
		e.Message = resp.Status
	}
	if resp.StatusCode == http.StatusUnprocessableEntity {
		return &FileError{e.Message}
	}
	return errors.New(e.Message)
}
