package bench

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// portion is one item of a list such as 4k/60:64k/40: a value and how many per
// cent of all draws take it.
type portion struct {
	value   int
	percent int
}

// maxShares is fio's limit for one direction.
const maxShares = 64

// parseShares reads VALUE/PERCENT:VALUE/PERCENT…; those without a percentage
// divide evenly what the others leave. The result adds up to 100.
func parseShares(s string, value func(string) (int, error)) (list []portion, err error) {
	var percents []string
	for item := range strings.SplitSeq(s, ":") {
		v, p, _ := strings.Cut(item, "/")
		n, err := value(v)
		if err != nil {
			return nil, err
		}
		list, percents = append(list, portion{value: n}), append(percents, p)
	}
	if len(list) > maxShares {
		return nil, fmt.Errorf("%d shares (at most %d)", len(list), maxShares)
	}
	filled, err := fillPercents(percents)
	for i := range filled {
		list[i].percent = filled[i]
	}
	return list, err
}

// fillPercents reads percentages, of which some may be empty: these divide what is
// left, the first ones taking what does not divide.
func fillPercents(texts []string) (list []int, err error) {
	left, empty := 100, 0
	list = make([]int, len(texts))
	for i, s := range texts {
		if s == "" {
			empty++
			continue
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 100 {
			return nil, fmt.Errorf("percentage %q must be 0 to 100", s)
		}
		list[i] = n
		left -= n
	}
	if left < 0 || left > 0 && empty == 0 {
		return nil, fmt.Errorf("the percentages add up to %d, not to 100", 100-left)
	}
	for i, s := range texts {
		if s == "" {
			list[i] = (left + empty - 1) / empty
			left -= list[i]
			empty--
		}
	}
	return list, nil
}

// pick returns the value that belongs to draw, a number below 100.
func pick(list []portion, draw int) int {
	for _, s := range list {
		if draw -= s.percent; draw < 0 {
			return s.value
		}
	}
	return list[len(list)-1].value
}

// notSplit refuses bs= behind bssplit=, which fio would leave without effect.
func (j *Job) notSplit() error {
	for _, list := range j.Split {
		if list != nil {
			return errors.New("bssplit has given the block sizes already: leave out one of the two")
		}
	}
	return nil
}
