package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A time in a selection is as long as it is exact: "2026-11" is a month, "2 hours ago"
// the hour that it was then.

// period is from its first to its last second.
type period struct{ from, to int64 }

// within compares when a volume was made.
func within(op, value string, now time.Time) (condition, error) {
	p, err := parsePeriod(value, now)
	if err != nil {
		return nil, err
	}
	if relative(value) && op == "!=" {
		return nil, fmt.Errorf("!= %q is not done here: say !(lv_time=...)", value) // lvm2 finds nothing, or everything
	}
	made := func(r *row) int64 { return r.lv.Created }
	switch op {
	case "=":
		return func(r *row) bool { return p.from <= made(r) && made(r) <= p.to }, nil
	case "!=": // to lvm2 only the beginning
		return func(r *row) bool { return made(r) != p.from }, nil
	case ">=":
		return func(r *row) bool { return made(r) >= p.from }, nil
	case ">":
		return func(r *row) bool { return made(r) > p.to }, nil
	case "<=":
		return func(r *row) bool { return made(r) <= p.to }, nil
	}
	return func(r *row) bool { return made(r) < p.from }, nil
}

var (
	dateText = regexp.MustCompile(`^(\d{4})(?:-?(\d\d)(?:-?(\d\d))?)?$`)
	timeText = regexp.MustCompile(`^(\d\d)(?::?(\d\d)(?::?(\d\d))?)?$`)
	zoneText = regexp.MustCompile(`^(.*?)( ?)([+-])(\d\d)(?::?(\d\d))?$`)
	agoText  = regexp.MustCompile(`^(\d+) (second|minute|hour|day)s? ago$`)
)

func relative(s string) bool { return s == "today" || s == "yesterday" || agoText.MatchString(s) }

// parsePeriod takes the times of lvmreport(7) that are a date, perhaps with a time of
// day and a time zone, a number of seconds since 1970, today, yesterday, or some
// seconds to days ago.
func parsePeriod(s string, now time.Time) (period, error) {
	bad := fmt.Errorf("%q is not a time that is compared here: give 2026-11-23, '2026-11-23 14:30', '2 hours ago', today, yesterday or @SECONDS", s)
	if n, err := strconv.ParseInt(strings.TrimPrefix(s, "@"), 10, 64); strings.HasPrefix(s, "@") && err == nil && n >= 0 {
		return period{n, n}, nil
	}
	switch s {
	case "today":
		s = "0 days ago"
	case "yesterday":
		s = "1 day ago"
	}
	if m := agoText.FindStringSubmatch(s); m != nil {
		n, err := strconv.Atoi(m[1])
		if err != nil || n > 1e6 {
			return period{}, bad
		}
		return ago(n, m[2], now), nil
	}
	zone := now.Location()
	// Without a space before it "-11" is a month or a day.
	if m := zoneText.FindStringSubmatch(s); m != nil && (m[2] == " " || m[3] == "+" || strings.Contains(m[1], " ")) {
		hours, _ := strconv.Atoi(m[4])
		minutes, _ := strconv.Atoi("0" + m[5])
		offset := hours*3600 + minutes*60
		if m[3] == "-" {
			offset = -offset
		}
		s, zone = m[1], time.FixedZone("", offset)
	}
	p, ok := parseDate(s, zone)
	if !ok {
		return period{}, bad
	}
	return p, nil
}

// ago is the unit of time that was n units before now.
func ago(n int, unit string, now time.Time) period {
	from, to := now, now
	y, mo, d := now.Date()
	h, mi, _ := now.Clock()
	switch unit {
	case "second":
		from = now.Add(-time.Duration(n) * time.Second)
		to = from.Add(time.Second)
	case "minute":
		from = time.Date(y, mo, d, h, mi, 0, 0, now.Location()).Add(-time.Duration(n) * time.Minute)
		to = from.Add(time.Minute)
	case "hour":
		from = time.Date(y, mo, d, h, 0, 0, 0, now.Location()).Add(-time.Duration(n) * time.Hour)
		to = from.Add(time.Hour)
	case "day":
		from = time.Date(y, mo, d-n, 0, 0, 0, 0, now.Location())
		to = from.AddDate(0, 0, 1)
	}
	return period{from.Unix(), to.Unix() - 1}
}

// parseDate takes a date, perhaps with a time of day.
func parseDate(s string, zone *time.Location) (period, bool) {
	day, clock, timed := strings.Cut(s, " ")
	m := dateText.FindStringSubmatch(day)
	if m == nil {
		return period{}, false
	}
	numbers := []int{0, 1, 1, 0, 0, 0}
	given := 0
	take := func(at int, words []string) {
		for i, w := range words {
			if w != "" {
				numbers[at+i], _ = strconv.Atoi(w) // digits
				given = at + i
			}
		}
	}
	take(0, m[1:])
	if timed {
		c := timeText.FindStringSubmatch(clock)
		if c == nil || given != 2 {
			return period{}, false
		}
		take(3, c[1:])
	}
	at := func(n []int) time.Time { return time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], 0, zone) }
	from := at(numbers)
	if y, mo, d := from.Date(); y != numbers[0] || int(mo) != numbers[1] || d != numbers[2] || numbers[3] > 23 || numbers[4] > 59 || numbers[5] > 59 {
		return period{}, false // it does not exist
	}
	numbers[given]++
	return period{from.Unix(), at(numbers).Unix() - 1}, true
}
