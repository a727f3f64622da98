package capture

import (
	"context"
	"errors"
	"io"
	"time"

	"softiser/internal/sockio"
)

// Request says what is captured, and how much of it.
type Request struct {
	Filter sockio.TapFilter
	Bytes  int64         // ends once so many bytes of streams have been written
	Time   time.Duration // or after this
}

// Result is what has been captured.
type Result struct {
	Connections int    `json:"connections"`
	Bytes       int64  `json:"bytes"`         // of streams
	Dropped     uint64 `json:"dropped_bytes"` // for want of room: gaps in the sequence numbers
}

// memory is the most that waits for the reader, bytes.
const memory = 64 << 20

// idle is a writer that is told when there is nothing to write for the moment.
type idle interface {
	io.Writer
	Flush() error
}

// Run writes a capture to w until ctx or a bound of q ends it, or all connections that it was
// about have ended. It has flushed w whenever there is nothing to write. An end by ctx is no
// error.
func Run(ctx context.Context, q Request, w idle) (res Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, q.Time)
	defer cancel()
	t, err := sockio.StartTap(q.Filter, int(min(q.Bytes, memory))+1<<20)
	if err != nil {
		return res, err
	}
	defer t.Stop()
	stop := context.AfterFunc(ctx, t.Stop)
	defer stop()
	f, err := newFile(w)
	if err != nil {
		return res, err
	}
	var lost error
	streams := map[int]*stream{}
	for res.Bytes < q.Bytes {
		r, err := t.Next(func() { lost = w.Flush() })
		if errors.Is(err, io.EOF) {
			break
		}
		if err = errors.Join(err, lost); err != nil {
			return res, err
		}
		if err := record(f, streams, &r); err != nil {
			return res, err
		}
		res.Connections, res.Bytes = len(streams), res.Bytes+int64(len(r.Data))
	}
	for _, s := range streams {
		for dir := range s.mpa {
			if err := f.release(time.Now(), s, dir); err != nil {
				return res, err
			}
		}
	}
	res.Dropped = t.Dropped()
	return res, w.Flush()
}

// record writes what a connection has done. The far end is the client: it has connected.
func record(f *file, streams map[int]*stream, r *sockio.TapRecord) error {
	s := streams[r.Conn]
	if s == nil {
		s = newStream(r.Remote, r.Local)
		streams[r.Conn] = s
	}
	switch r.Kind {
	case sockio.TapBegin:
		return f.open(r.Time, s)
	case sockio.TapSent:
		return f.stream(r.Time, s, fromServer, r.Off, r.Data)
	case sockio.TapReceived:
		return f.stream(r.Time, s, fromClient, r.Off, r.Data)
	case sockio.TapSentEnd:
		return f.end(r.Time, s, fromServer, r.Off)
	}
	return f.end(r.Time, s, fromClient, r.Off)
}
