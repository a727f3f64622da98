package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Logs says which time series a job writes: one line for each operation, or for
// each window of Average. File names and lines are fio's (fio(1), "LOG FILE
// FORMATS"):
//
//	PREFIX_bw.1.log              of the first clone of the run
//	PREFIX_slat.2.log, …_clat…, …_lat…   of the second
//	time (ms), value, direction (0 read, 1 write, 2 trim), block size, [offset,] priority
//
// Values are KiB/s (of a single operation kB/s), operations per second (of a single
// operation 1), and nanoseconds. Averages have no block size and no offset.
type Logs struct {
	BW, IOPS, Lat logName
	Average       time.Duration
	Shared        bool // clones append to one file of each kind
	Max           bool // the greatest value of a window instead of the mean
	Offset        bool
	Priority      bool // its column is hexadecimal
	Unix          bool // times count from 1970, not from the clone's start or the end of its ramp
}

// logName is the prefix of a file, and whether it is written at all.
type logName struct {
	on     bool
	prefix string // empty: the job's name
}

// ofJob stands for a switch given without a value on the command line.
const ofJob = "the job's name"

func logVar(p func(*Job) *logName) func(*Job, string) error {
	return func(j *Job, v string) error {
		if v == ofJob {
			v = ""
		}
		*p(j) = logName{on: true, prefix: v}
		return nil
	}
}

// series is one file of a clone.
type series struct {
	logs *Logs
	kind seriesKind
	file *os.File
	buf  []byte // whole lines
	err  error
	base int64 // milliseconds added to every time
	from time.Duration
	win  [datas]slice
}

// seriesKind is what a series tells.
type seriesKind uint8

const (
	seriesBW seriesKind = iota
	seriesIOPS
	seriesSlat
	seriesClat
	seriesLat
)

func (k seriesKind) String() string { return [...]string{"bw", "iops", "slat", "clat", "lat"}[k] }

// slice is what one direction has done in the present window.
type slice struct {
	Moments       // of latencies
	bytes   int64 // of bandwidth
}

// seriesBuffer is how much is collected before it is written.
const seriesBuffer = 64 << 10

// seriesSet is all that a clone writes.
type seriesSet []*series

// openSeries creates the files of a clone; who calls closes them, after an error, too.
func openSeries(j *Job) (set seriesSet, err error) {
	l := &j.Logs
	for _, k := range []struct {
		name logName
		kind seriesKind
	}{{l.BW, seriesBW}, {l.IOPS, seriesIOPS}, {l.Lat, seriesSlat}, {l.Lat, seriesClat}, {l.Lat, seriesLat}} {
		if !k.name.on {
			continue
		}
		prefix := k.name.prefix
		if prefix == "" {
			prefix = j.Name
		}
		name, flags := fmt.Sprintf("%s_%v.%d.log", prefix, k.kind, j.thread), os.O_TRUNC
		if l.Shared {
			name, flags = fmt.Sprintf("%s_%v.log", prefix, k.kind), os.O_APPEND
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|flags, 0o644)
		if err != nil {
			return set, fmt.Errorf("job %s: log: %w", j.Name, err)
		}
		s := &series{logs: l, kind: k.kind, file: f, buf: make([]byte, 0, seriesBuffer)}
		set = append(set, s)
	}
	return set, nil
}

// startLogs makes now the zero of the logs' times.
func (c *clone) startLogs(now time.Duration) {
	c.logged = now
	for _, s := range c.series {
		if s.logs.Unix {
			s.base = time.Now().UnixMilli()
		}
	}
}

// enter adds a finished operation to every series. now counts from the clone's
// start, or from the end of its ramp.
func (set seriesSet) enter(now time.Duration, d dir, off int64, n int, slat, clat int64) {
	for _, s := range set {
		v := int64(1)
		switch s.kind {
		case seriesBW:
			v = int64(float64(n) * 1e6 / float64(max(clat, 1)))
		case seriesSlat:
			v = slat
		case seriesClat:
			v = clat
		case seriesLat:
			v = slat + clat
		}
		s.add(now, v, d, off, n)
	}
}

func (s *series) add(now time.Duration, v int64, d dir, off int64, n int) {
	avg := s.logs.Average
	if avg == 0 {
		s.line(now, v, d, n, off)
		return
	}
	if now >= s.from+avg {
		s.closeWindow(s.from + avg)
		s.from = now - now%avg
	}
	s.win[d].Add(v)
	s.win[d].bytes += int64(n)
}

// closeWindow writes what the window that ends at end has had.
func (s *series) closeWindow(end time.Duration) {
	for d := range s.win {
		w := &s.win[d]
		if w.N > 0 {
			v := int64(w.Mean + 0.5)
			spent := (end - s.from).Seconds()
			switch {
			case s.kind == seriesBW:
				v = int64(float64(w.bytes) / 1024 / spent)
			case s.kind == seriesIOPS:
				v = int64(float64(w.N) / spent)
			case s.logs.Max:
				v = w.Max
			}
			s.line(end, v, dir(d), 0, 0)
		}
		*w = slice{}
	}
}

// line adds one line.
func (s *series) line(now time.Duration, v int64, d dir, n int, off int64) {
	b := strconv.AppendInt(s.buf, s.base+now.Milliseconds(), 10)
	b = strconv.AppendInt(append(b, ", "...), v, 10)
	b = strconv.AppendInt(append(b, ", "...), int64(d), 10)
	b = strconv.AppendInt(append(b, ", "...), int64(n), 10)
	if s.logs.Offset {
		b = strconv.AppendInt(append(b, ", "...), off, 10)
	}
	if s.logs.Priority {
		b = append(b, ", 0x0000\n"...) // commands have none
	} else {
		b = append(b, ", 0\n"...)
	}
	if s.buf = b; len(b) > seriesBuffer-128 {
		s.flush()
	}
}

func (s *series) flush() {
	if s.err == nil && len(s.buf) > 0 {
		_, s.err = s.file.Write(s.buf)
	}
	s.buf = s.buf[:0]
}

// end writes what is left at now. A window of bandwidth or operations that is not
// over says nothing, as in fio.
func (s *series) end(now time.Duration) error {
	if avg := s.logs.Average; avg > 0 && now > s.from {
		switch {
		case now >= s.from+avg:
			s.closeWindow(s.from + avg)
		case s.kind >= seriesSlat:
			s.closeWindow(now)
		}
	}
	s.flush()
	return s.err
}

// end completes the files. It returns the first error.
func (set seriesSet) end(now time.Duration) (err error) {
	for _, s := range set {
		if e := s.end(now); err == nil {
			err = e
		}
	}
	return err
}

func (set seriesSet) close() (err error) {
	for _, s := range set {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
