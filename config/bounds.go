package config

import (
	"fmt"
	"net"
	"strings"
	"time"
)

// Bounds of what is possible and cannot be meant, such as a time or a size without its unit.
const (
	minTime      = Duration(100 * time.Millisecond) // between pings, and for an answer of a peer
	minSession   = Duration(time.Second)
	maxGrace     = Duration(time.Hour)
	maxDelay     = Duration(time.Hour)
	minBandwidth = Size(4 << 10)
	minBuffer    = Size(4 << 10)
)

// checkWritten finds zeros that the file spells out, and that would be taken for what it leaves out. It goes
// before fillDefaults.
func (c *Config) checkWritten(r *report) {
	zero := func(is bool, key, format string, args ...any) {
		if _, written := r.lines[key]; is && written {
			r.add(key, format, args...)
		}
	}
	for i, p := range c.Portals {
		zero(p.Group == 0, fmt.Sprintf("portals[%d].group", i), "0 is no portal group: they are numbered from 1 to 65535; leave it out for 1")
	}
	for i, v := range c.Volumes {
		key := fmt.Sprintf("volumes[%d]", i)
		zero(v.BlockSize == 0, key+".block_size", "0 is not a block size we serve; expected 512B or 4096B, or leave it out for 512B")
		zero(v.PhysBlockSize == 0, key+".phys_block_size", "0 is no block size; leave it out for 4KiB")
	}
	for i, g := range c.HA.Groups {
		zero(g.Grace == 0, fmt.Sprintf("ha.groups[%d].grace", i), "0s leaves commands no time; leave it out for 2s, or say 1ms to give up what is under way")
	}
}

func checkRange(r *report, key string, n, low, high int) {
	if n < low || n > high {
		r.add(key, "%d is not between %d and %d", n, low, high)
	}
}

func checkSize(r *report, key string, n, low, high Size) {
	if n < low || n > high {
		r.add(key, "%s is not between %s and %s", n, low, high)
	}
}

// checkLeast refuses a time that is shorter than anybody can mean; 0 has a meaning of its own.
func checkLeast(r *report, key string, d, least Duration) {
	if d > 0 && d < least {
		r.add(key, "%v is less than %v; write a time with its unit, such as 15s", d, least)
	}
}

// checkQoS checks limits, and that bursts have a limit that they are of.
func checkQoS(r *report, key string, q *QoS) {
	switch {
	case q.IOPS < 0 || q.Bandwidth < 0 || q.Burst < 0 || q.BurstIOPS < 0:
		r.add(key, "limits cannot be negative; 0 means no limit")
		return
	case q.Bandwidth > 0 && q.Bandwidth < minBandwidth:
		r.add(key+".bandwidth", "%s a second is less than %s, and commands would take minutes; write a size with its unit, such as 100MiB", q.Bandwidth, minBandwidth)
	}
	if q.Burst > 0 && q.Bandwidth == 0 {
		r.add(key+".burst", "%s: there is no bandwidth that it could exceed; say bandwidth, or leave burst out", q.Burst)
	}
	if q.BurstIOPS > 0 && q.IOPS == 0 {
		r.add(key+".burst_iops", "%d: there is no iops that it could exceed; say iops, or leave burst_iops out", q.BurstIOPS)
	}
}

// checkFault checks what a volume does wrong on purpose.
func checkFault(r *report, key string, f *Fault) {
	if !(f.ErrorRate >= 0 && f.ErrorRate <= 1) { // what is no number, too
		r.add(key+".error_rate", "%v is not a share between 0 and 1", f.ErrorRate)
	}
	if f.ReadDelay < 0 || f.WriteDelay < 0 {
		r.add(key, "delays cannot be negative")
	}
	for name, d := range map[string]Duration{"read_delay": f.ReadDelay, "write_delay": f.WriteDelay} {
		if d > maxDelay {
			r.add(key+"."+name, "%v is more than %v", d, maxDelay)
		}
	}
}

// checkBuffer checks the size of a buffer of a socket; 0 is the host's.
func checkBuffer(r *report, key string, n Size) {
	if n != 0 {
		checkSize(r, key, n, minBuffer, 1<<30)
	}
}

// checkTold checks an address that initiators are told to connect to.
func checkTold(r *report, key, addr string) {
	known := len(r.found)
	if checkHostPort(r, key, addr); len(r.found) > known {
		return
	}
	host, port, _ := net.SplitHostPort(addr)
	if ip, ok := ipOf(host); host == "" || ok && (ip.IsUnspecified() || ip.IsMulticast()) {
		r.add(key, "%q is no address of one interface, and initiators are to connect to it; name one that they reach, such as 192.0.2.1:3260", addr)
	} else if strings.Trim(port, "0") == "" {
		r.add(key, "%q: initiators cannot connect to port %s; name the one that they reach, such as 3260", addr, port)
	}
}
