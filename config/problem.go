package config

import (
	"fmt"
	"os"
	"sort"
	"strings"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	File string // "" when there is no file
	Line int    // 0 when it belongs to no line
	Key  string // portals[0].listen
	Text string // what is wrong and what is expected
}

// Error reads file:line: key: text.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Problems is everything wrong with a configuration, in file order.
type Problems []*Problem

// Error prints one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// report collects problems and knows where each key stands in the file.
type report struct {
	file  string
	lines map[string]int
	found Problems
}

func (r *report) add(key, format string, args ...any) {
	if !strings.Contains(key, "[") && os.Getenv(envName(key)) != "" {
		r.found = append(r.found, &Problem{Key: key, Text: fmt.Sprintf("%s, says the environment variable %s", fmt.Sprintf(format, args...), envName(key))})
		return
	}
	r.addLine(r.line(key), key, format, args...)
}

func (r *report) addLine(line int, key, format string, args ...any) {
	r.found = append(r.found, &Problem{File: r.file, Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

// line finds the line of key, or of the nearest thing around it.
func (r *report) line(key string) int {
	for key != "" {
		if n, ok := r.lines[key]; ok {
			return n
		}
		cut := strings.LastIndexAny(key, ".[")
		if cut < 0 {
			break
		}
		key = key[:cut]
	}
	return 0
}

func (r *report) err() error {
	if len(r.found) == 0 {
		return nil
	}
	sort.SliceStable(r.found, func(i, j int) bool { return r.found[i].Line < r.found[j].Line })
	return r.found
}
