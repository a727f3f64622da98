package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// piece is one chunk on its way between a volume and a stream. Pieces are
// worked on at once, and taken from the stream and given to it in order.
type piece struct {
	buf  []byte
	req  blockio.Request
	n    int           // bytes of the stream in buf
	busy bool          // a write of it is under way
	done chan struct{} // the volume's part has ended
}

// stream moves bytes between [off, off+length) of a volume and a file.
type stream struct {
	lun    blockio.Volume
	off    int64
	length int64 // <0: until the input ends
	input  int64 // bytes of the input that count, where pad has rounded length up to whole blocks; 0: all
	chunk  int
	depth  int
	sparse bool // zeroes are not moved as data
	pad    bool // write: fill the last block with zeroes
	fua    bool
	prog   *progress

	moved, zeroes int64
}

var errDiffer = errors.New("the contents differ")

// pieces are as many as are under way at a time, and no more than most bytes need.
func (s *stream) pieces(most int64) []*piece {
	n := int(min(int64(s.depth), max((most+int64(s.chunk)-1)/int64(s.chunk), 1)))
	ps, mem := make([]*piece, n), make([]byte, n*s.chunk)
	for i := range ps {
		ps[i] = &piece{buf: mem[i*s.chunk : (i+1)*s.chunk : (i+1)*s.chunk], done: make(chan struct{}, 1)}
	}
	return ps
}

// padLength rounds the length up to whole blocks.
func (s *stream) padLength() {
	if over := s.length % int64(s.lun.Info().BlockSize); s.length > 0 && over != 0 {
		s.input, s.length = s.length, s.length+int64(s.lun.Info().BlockSize)-over
	}
}

// counted is what of the input counts.
func (s *stream) counted(r io.Reader) io.Reader {
	if s.input > 0 {
		return io.LimitReader(r, s.input)
	}
	return r
}

// start runs p's request; the end of it is told on p.done.
func (s *stream) start(ctx context.Context, p *piece) {
	go func() {
		s.lun.Do(ctx, &p.req) // the error stays in the request
		if p.req.Op == blockio.OpWriteZeroes && errors.Is(p.req.Err, blockdev.ErrNotSupported) {
			s.lun.Do(ctx, &p.req) // the target turned out to have no such command: zeroes are written from now on
		}
		p.done <- struct{}{}
	}()
}

// read gives the range to take, in order, with depth chunks read ahead.
func (s *stream) read(ctx context.Context, take func(p []byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	ps := s.pieces(s.length)
	started, taken := 0, 0 // pieces
	defer func() {
		cancel()
		for ; taken < started; taken++ {
			<-ps[taken%len(ps)].done
		}
	}()
	var next int64 // offset of the next piece within the range
	for s.moved < s.length {
		for started-taken < len(ps) && next < s.length {
			p := ps[started%len(ps)]
			p.n = int(min(int64(s.chunk), s.length-next))
			p.req = blockio.Request{Op: blockio.OpRead, Off: s.off + next, Buf: p.buf[:p.n]}
			next += int64(p.n)
			started++
			s.start(ctx, p)
		}
		p := ps[taken%len(ps)]
		<-p.done
		taken++
		if p.req.Err != nil {
			return fmt.Errorf("reading %d bytes at %d: %w", p.n, p.req.Off, p.req.Err)
		}
		if err := take(p.buf[:p.n]); err != nil {
			return err
		}
		s.moved += int64(p.n)
		s.prog.done.Store(s.moved)
	}
	return nil
}

// toFile returns a function that writes what is read to f; with sparse, zeroes
// in a regular file become holes, where stepping over them leaves holes.
func (s *stream) toFile(f *os.File) (take func([]byte) error, finish func() error) {
	seekable := s.sparse && growsByHoles(f)
	hole := false
	take = func(p []byte) error {
		if seekable && allZero(p) {
			s.zeroes += int64(len(p))
			hole = true
			_, err := f.Seek(int64(len(p)), io.SeekCurrent)
			return err
		}
		hole = false
		_, err := f.Write(p)
		return err
	}
	finish = func() error {
		if !hole {
			return nil
		}
		end, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		return f.Truncate(end)
	}
	return take, finish
}

// orEnd is write, unless ctx ends first: a pipe that nobody reads does not hold up who has been told to end.
// Then write may still be under way; what it uses is not touched any more.
func orEnd(ctx context.Context, write func() error) error {
	written := make(chan error, 1)
	go func() { written <- write() }()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// growsByHoles reports whether seeking forward in f and writing there leaves a
// hole: not where every write goes to the end (O_APPEND, as of a shell's >>), nor
// over what the file holds already.
func growsByHoles(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil || at < st.Size() {
		return false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND == 0
}

// write copies r to the volume until it ends or length bytes have been copied.
func (s *stream) write(ctx context.Context, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ps := s.pieces(s.room())
	failed := s.submit(ctx, r, ps)
	for _, p := range ps {
		if failed != nil {
			cancel()
		}
		if err := s.written(p); failed == nil {
			failed = err
		}
	}
	return failed
}

// room is how many bytes may be written at most.
func (s *stream) room() int64 {
	if s.length >= 0 {
		return s.length
	}
	return s.lun.Info().Size - s.off
}

// submit begins to write what comes from r, a piece of ps after the other, each again when
// its last write has ended. Those that it leaves under way are for the caller to wait for.
func (s *stream) submit(ctx context.Context, r io.Reader, ps []*piece) error {
	room := s.room()
	for i := 0; ; i = (i + 1) % len(ps) {
		p := ps[i]
		if err := s.written(p); err != nil {
			return err
		}
		if s.moved == room {
			return s.checkEnd(r)
		}
		last, err := s.fill(p, r, room-s.moved)
		if err != nil {
			return err
		}
		if p.n > 0 {
			p.req = s.writeOf(p)
			p.busy = true
			s.start(ctx, p)
			s.moved += int64(p.n)
		}
		switch {
		case last && s.length >= 0 && s.moved < s.length:
			return fmt.Errorf("the input ended after %d of %d bytes", s.moved, s.length)
		case last:
			return nil
		}
	}
}

// fill reads the next piece from r, at most as many bytes. last: the input has ended.
func (s *stream) fill(p *piece, r io.Reader, most int64) (last bool, err error) {
	p.n, err = io.ReadFull(r, p.buf[:min(int64(s.chunk), most)])
	last = err != nil
	if last && err != io.EOF && err != io.ErrUnexpectedEOF {
		return true, fmt.Errorf("reading the input: %w", err)
	}
	bs := s.lun.Info().BlockSize
	if over := p.n % bs; over != 0 {
		if !s.pad {
			return last, unpadded(int64(over), int64(bs), s.moved+int64(p.n))
		}
		end := p.n + bs - over
		clear(p.buf[p.n:end])
		p.n = end
	}
	return last, nil
}

// writeOf is the request that puts a filled piece behind what has been moved.
func (s *stream) writeOf(p *piece) blockio.Request {
	off, b := s.off+s.moved, p.buf[:p.n]
	if s.sparse && allZero(b) {
		s.zeroes += int64(p.n)
		return blockio.Request{Op: blockio.OpWriteZeroes, Off: off, Len: int64(p.n), MayUnmap: true, FUA: s.fua}
	}
	return blockio.Request{Op: blockio.OpWrite, Off: off, Buf: b, FUA: s.fua}
}

// written waits until a piece is free, and says how its last write ended.
func (s *stream) written(p *piece) error {
	if !p.busy {
		return nil
	}
	<-p.done
	p.busy = false
	s.prog.done.Add(int64(p.n))
	if p.req.Err != nil {
		return fmt.Errorf("writing %d bytes at %d: %w", p.n, p.req.Off, p.req.Err)
	}
	return nil
}

// checkEnd complains about input that is left when the volume is full.
func (s *stream) checkEnd(r io.Reader) error {
	if s.length >= 0 {
		return nil // the user said how much
	}
	if left, err := more(r); err != nil || !left {
		return err
	}
	return fmt.Errorf("the input is longer than the %d bytes from %d to the end of the volume; --length says how much to write", s.lun.Info().Size-s.off, s.off)
}

// more reports whether something is left of the input.
func more(r io.Reader) (bool, error) {
	switch _, err := io.ReadFull(r, make([]byte, 1)); err {
	case nil:
		return true, nil
	case io.EOF:
		return false, nil
	default:
		return false, fmt.Errorf("reading the input: %w", err)
	}
}

// unpadded is the answer to an input that ends over bytes into a block.
func unpadded(over, bs, at int64) error {
	return fmt.Errorf("the input ends %d bytes into a block of %d bytes (at %d); --pad fills it up with zeroes", over, bs, at)
}

// compare reads the range and compares it with r. The offset of the first
// difference is returned with errDiffer.
func (s *stream) compare(ctx context.Context, r io.Reader) (at int64, err error) {
	want, bs := make([]byte, s.chunk), s.lun.Info().BlockSize
	pos := s.off
	err = s.read(ctx, func(got []byte) error {
		n, err := io.ReadFull(r, want[:len(got)])
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return fmt.Errorf("reading the input: %w", err)
		}
		if n < len(got) && s.pad {
			end := (n + bs - 1) / bs * bs
			clear(want[n:end])
			n = end
		}
		if !bytes.Equal(got[:n], want[:n]) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			at = pos + int64(i)
			return errDiffer
		}
		if n < len(got) {
			return fmt.Errorf("the input ended after %d bytes, %d before the end of the range", pos-s.off+int64(n), s.length-(pos-s.off)-int64(n))
		}
		pos += int64(len(got))
		return nil
	})
	return at, err
}

var zeroChunk [64 << 10]byte

func allZero(p []byte) bool {
	for len(p) > len(zeroChunk) {
		if !bytes.Equal(p[:len(zeroChunk)], zeroChunk[:]) {
			return false
		}
		p = p[len(zeroChunk):]
	}
	return bytes.Equal(p, zeroChunk[:len(p)])
}
