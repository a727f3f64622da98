package scsi

import "encoding/binary"

// logParams collects the parameters of a page.
type logParams struct {
	b    []byte
	from uint16 // parameter pointer: what comes before is left out
	last uint16 // largest parameter code
	bad  bool   // there are no values of the kind asked for
	pc   byte
}

// counter adds a counter: its value, or its default, which is zero. There are no
// threshold values.
func (l *logParams) counter(code uint16, v uint64) {
	switch l.pc {
	case logThreshold, logDefaultThreshold:
		l.bad = true
	case logDefault:
		v = 0
	}
	l.add(code, logCounter, binary.BigEndian.AppendUint64(nil, v))
}

// list adds a list parameter.
func (l *logParams) list(code uint16, v []byte) { l.add(code, logList, v) }

func (l *logParams) add(code uint16, control byte, v []byte) {
	l.last = code
	if code < l.from {
		return
	}
	l.b = binary.BigEndian.AppendUint16(l.b, code)
	l.b = append(append(l.b, control, byte(len(v))), v...)
}

// Page control values of LOG SENSE.
const (
	logThreshold        = 0
	logCumulative       = 1
	logDefaultThreshold = 2
	logDefault          = 3
)
