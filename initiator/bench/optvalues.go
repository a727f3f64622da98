package bench

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

func setName(j *Job, v string) error {
	if v == "" || v == globalSection {
		return errors.New("cannot be a job's name")
	}
	j.Name = v
	return nil
}

// setURI reads a volume's URL, in which fio wants a backslash before every colon.
func setURI(j *Job, v string) error {
	v = strings.ReplaceAll(v, `\:`, ":")
	switch strings.Count(v, "://") {
	case 0:
		return errors.New("expected a volume's URL such as iser://127.0.0.1/iqn.2026-11.softiser:demo/0, here or on the command line; local files and devices are fio's own business")
	case 1:
		j.URL = v
		return nil
	}
	return errors.New("a job has one volume: write a job for each")
}

func setEngine(_ *Job, v string) error {
	if !slices.Contains(engines, strings.ToLower(v)) {
		return fmt.Errorf("this engine does not read and write a block device (those that do: %s)", strings.Join(engines, ", "))
	}
	return nil
}

// perDir splits "R,W,T": fewer values repeat the last one given.
func perDir(v string, f func(d dir, s string) error) error {
	parts := strings.Split(v, ",")
	if len(parts) > datas {
		return fmt.Errorf("%d values (at most %d: read, write, trim)", len(parts), datas)
	}
	for d := range datas {
		s := parts[min(d, len(parts)-1)]
		if s == "" {
			continue // "4k,,8k": keep the default
		}
		if err := f(dir(d), s); err != nil {
			return err
		}
	}
	return nil
}

func setBS(j *Job, v string) error {
	if err := j.notSplit(); err != nil {
		return err
	}
	return perDir(v, func(d dir, s string) error {
		n, err := blockSize(s, j.kbBase)
		j.BS[d] = MinMax{n, n}
		return err
	})
}

func setBSRange(j *Job, v string) error {
	if err := j.notSplit(); err != nil {
		return err
	}
	return perDir(v, func(d dir, s string) error {
		i := strings.IndexAny(s, "-:")
		if i < 0 { // of a list fio takes it for nothing, and the default holds
			return fmt.Errorf("%q is no range: expected MIN-MAX, as in %[1]s-%[1]s for one size", s)
		}
		a, err := blockSize(s[:i], j.kbBase)
		if err != nil {
			return err
		}
		b, err := blockSize(s[i+1:], j.kbBase)
		j.BS[d] = MinMax{min(a, b), max(a, b)}
		return err
	})
}

func blockSize(s string, kbBase int) (int, error) {
	n, err := parseBytes(s, kbBase)
	if err == nil && (n < 512 || n > maxBlock) {
		err = fmt.Errorf("block size %d must lie between 512 and %d bytes", n, maxBlock)
	}
	return int(n), err
}

func setRandRepeat(j *Job, v string) error {
	on, err := parseBool(v)
	if err != nil || on {
		return err
	}
	var b [8]byte
	rand.Read(b[:])
	j.Seed = binary.LittleEndian.Uint64(b[:])
	return nil
}

func setSync(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "sync", "dsync":
		v = "1"
	case "none":
		v = "0"
	}
	on, err := parseBool(v)
	j.FUA = on
	return err
}

func setVerify(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "crc32c", "crc32c-intel":
		j.Verify = VerifyCRC32C
	case "none", "0":
		j.Verify = VerifyNone
	default:
		return errors.New("expected crc32c or none")
	}
	return nil
}

func setContinue(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "none", "0":
		j.ContinueOnErr = false
	case "all", "io", "1":
		j.ContinueOnErr = true
	case "read", "write", "verify":
		return errors.New("would change the load, and is not offered: a job goes on after all failed operations or after none")
	default:
		return errors.New("expected none or all")
	}
	return nil
}

func setPercentiles(j *Job, v string) error {
	var list []float64
	for s := range strings.SplitSeq(v, ":") {
		p, err := strconv.ParseFloat(s, 64)
		if err != nil || !(p > 0 && p <= 100) {
			return fmt.Errorf("percentile %q must lie above 0 and not above 100", s)
		}
		list = append(list, p)
	}
	if len(list) > 20 {
		return fmt.Errorf("%d percentiles (at most 20)", len(list))
	}
	slices.Sort(list)
	j.Percentiles = list
	return nil
}

func parseBool(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "1", "true", "yes", "on":
		return true, nil
	case "0", "false", "no", "off":
		return false, nil
	}
	return false, errors.New("expected 0 or 1")
}

func intVar(p func(*Job) *int) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		*p(j), err = strconv.Atoi(v)
		return plainNumber(err)
	}
}

func int64Var(p func(*Job) *int64) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		*p(j), err = parseBytes(v, j.kbBase)
		return err
	}
}

// plainNumber replaces strconv's wording.
func plainNumber(err error) error {
	if err != nil {
		return errors.New("expected a whole number")
	}
	return nil
}

func boolVar(p func(*Job) *bool) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		*p(j), err = parseBool(v)
		return err
	}
}

func sizeVar(p func(*Job) *Size) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		*p(j), err = parseSize(v, j.kbBase)
		return err
	}
}

func timeVar(p func(*Job) *time.Duration, unit time.Duration) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		*p(j), err = parseDuration(v, unit)
		return err
	}
}

func ratesVar(p func(*Job) *[datas]int64) func(*Job, string) error {
	return func(j *Job, v string) error {
		return perDir(v, func(d dir, s string) (err error) {
			p(j)[d], err = parseBytes(s, j.kbBase)
			return err
		})
	}
}

func setBSSplit(j *Job, v string) error {
	return perDir(v, func(d dir, s string) error {
		list, err := parseShares(s, func(v string) (int, error) { return blockSize(v, j.kbBase) })
		if err != nil {
			return err
		}
		bs := MinMax{list[0].value, list[0].value}
		for _, e := range list {
			bs.Min, bs.Max = min(bs.Min, e.value), max(bs.Max, e.value)
		}
		j.BS[d], j.Split[d] = bs, list
		return nil
	})
}
