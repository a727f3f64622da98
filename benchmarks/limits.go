package main

import (
	_ "embed"
	"regexp"
	"strings"
)

// limitsText is of this program's own tree, wherever results go.
//
//go:embed LIMITS.md
var limitsText string

// limits returns a function from a row to the link to the section of LIMITS.md that explains it, or "".
func limits() func(row string) string {
	sections := parseLimits(limitsText)
	return func(row string) string {
		if at := sections[row]; at != "" {
			return "LIMITS.md#" + at
		}
		return ""
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// parseLimits maps each row that a section's line "Rows: `a`, `b`" names to the
// anchor of the first section that does.
func parseLimits(text string) map[string]string {
	rows := map[string]string{}
	at := ""
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			at = anchor(title)
		}
		if list, ok := strings.CutPrefix(line, "Rows:"); ok && at != "" {
			for _, m := range quoted.FindAllStringSubmatch(list, -1) {
				if rows[m[1]] == "" {
					rows[m[1]] = at
				}
			}
		}
	}
	return rows
}

// anchor is what a heading becomes in a link: letters, digits, - and _ stay,
// blanks become -.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			return r
		}
		return -1
	}, strings.ToLower(strings.TrimSpace(title)))
}
