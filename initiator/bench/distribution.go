package bench

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// spread is how random offsets are distributed over the range.
type spread uint8

const (
	spreadEven   spread = iota
	spreadZipf          // the k-th most frequent block is drawn in proportion to k^-theta
	spreadPareto        // a share h of the blocks gets a share 1-h of the draws, at every scale
	spreadZoned         // each zone of the range gets its own share of the draws
)

// Distribution is the value of random_distribution.
type Distribution struct {
	kind  spread
	param float64 // theta of zipf, h of pareto
	zones []zone
}

// zone is a part of the range, both numbers in per cent.
type zone struct{ draws, size int }

// setDistribution parses random_distribution: fio's names, without what one distribution
// for all directions cannot say.
func setDistribution(j *Job, v string) error {
	kind, arg, given := strings.Cut(strings.ToLower(v), ":")
	if strings.Contains(v, ",") {
		return errors.New("would change the load, and is not offered: all directions of a job have one distribution")
	}
	d := Distribution{}
	number := func(otherwise float64) (err error) {
		if d.param = otherwise; given {
			d.param, err = strconv.ParseFloat(arg, 64)
		}
		if err != nil || math.IsNaN(d.param) {
			return fmt.Errorf("expected one number behind %s: (a centre is not offered)", kind)
		}
		return nil
	}
	switch kind {
	case "random":
		if given {
			return errors.New("random takes no value")
		}
	case "zipf":
		d.kind = spreadZipf
		if err := number(1.1); err != nil { // fio's default
			return err
		}
		if d.param <= 0 || d.param == 1 || d.param > 100 {
			return errors.New("theta must lie above 0, not above 100, and not be 1")
		}
	case "pareto":
		d.kind = spreadPareto
		if err := number(0.2); err != nil { // fio's default
			return err
		}
		if d.param <= 0 || d.param >= 1 {
			return errors.New("the power must lie between 0 and 1")
		}
	case "zoned":
		d.kind = spreadZoned
		zones, err := parseZones(arg)
		if err != nil {
			return err
		}
		d.zones = zones
	default:
		return errors.New("would change the load, and is not offered (expected random, zipf:THETA, pareto:POWER or zoned:DRAWS/SIZE:…)")
	}
	j.Dist = d
	return nil
}

// parseZones reads DRAWS/SIZE:DRAWS/SIZE…, both in per cent of the whole.
func parseZones(s string) (zones []zone, err error) {
	var draws, sizes []string
	for item := range strings.SplitSeq(s, ":") {
		d, z, _ := strings.Cut(item, "/")
		draws, sizes = append(draws, d), append(sizes, z)
	}
	if len(draws) > maxShares {
		return nil, fmt.Errorf("%d zones (at most %d)", len(draws), maxShares)
	}
	d, err := fillPercents(draws)
	if err != nil {
		return nil, fmt.Errorf("shares of the draws: %w", err)
	}
	z, err := fillPercents(sizes)
	if err != nil {
		return nil, fmt.Errorf("sizes of the zones: %w", err)
	}
	for i := range d {
		if d[i] > 0 && z[i] == 0 {
			return nil, fmt.Errorf("zone %d gets %d%% of the draws and has no size", i+1, d[i])
		}
		zones = append(zones, zone{d[i], z[i]})
	}
	return zones, nil
}

// scatter draws block numbers below n with a distribution. Of zipf and pareto the
// hot blocks are scattered over the range, as in fio: rank k is block perm(k).
type scatter struct {
	dist  Distribution
	n     uint64
	perm  permutation
	power float64 // of both formulas
	zetan float64 // zipf: sum of k^-theta over all ranks
	eta   float64
}

func newScatter(d Distribution, n, seed uint64) *scatter {
	s := &scatter{dist: d, n: n, perm: newPermutation(n, seed)}
	switch d.kind {
	case spreadZipf:
		s.power = 1 / (1 - d.param)
		s.zetan = zeta(n, d.param)
		s.eta = (1 - math.Pow(2/float64(n), 1-d.param)) / (1 - zeta(2, d.param)/s.zetan)
	case spreadPareto:
		s.power = math.Log(d.param) / math.Log(1-d.param)
	}
	return s
}

// next draws a block number.
func (s *scatter) next(r *rng) uint64 {
	switch s.dist.kind {
	case spreadZipf:
		return s.perm.at(s.zipfRank(r.unit()))
	case spreadPareto:
		return s.perm.at(min(uint64(float64(s.n-1)*math.Pow(r.unit(), s.power)), s.n-1))
	case spreadZoned:
		return s.zoned(r)
	}
	return r.below(s.n)
}

// zipfRank turns an even u into a rank, by the approximation of Gray and others,
// "Quickly generating billion-record synthetic databases" (SIGMOD 1994).
func (s *scatter) zipfRank(u float64) uint64 {
	z := u * s.zetan
	switch {
	case z < 1 || s.n == 1:
		return 0
	case z < 1+math.Pow(0.5, s.dist.param) || s.n == 2:
		return 1
	}
	return min(uint64(float64(s.n)*math.Pow(s.eta*u-s.eta+1, s.power)), s.n-1)
}

func (s *scatter) zoned(r *rng) uint64 {
	draw, from := int(r.below(100)), 0
	for _, z := range s.dist.zones {
		if draw -= z.draws; draw < 0 {
			lo, hi := s.percent(from), s.percent(from+z.size)
			return lo + r.below(max(hi-lo, 1))
		}
		from += z.size
	}
	return r.below(s.n)
}

// percent is the block that begins behind p per cent of the range; never its end.
func (s *scatter) percent(p int) uint64 {
	if p == 100 {
		return s.n
	}
	return min(s.n/100*uint64(p)+s.n%100*uint64(p)/100, s.n-1)
}

// zetaExact is how many ranks are summed one by one; the rest is an integral that
// differs from the sum by less than a millionth.
const zetaExact = 1 << 14

// zeta sums k^-theta for k from 1 to n.
func zeta(n uint64, theta float64) (sum float64) {
	exact := min(n, zetaExact)
	for k := exact; k > 0; k-- {
		sum += math.Pow(float64(k), -theta)
	}
	if n > exact {
		e := 1 - theta
		sum += (math.Pow(float64(n)+0.5, e) - math.Pow(float64(exact)+0.5, e)) / e
	}
	return sum
}
