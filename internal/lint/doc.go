// Package lint holds the rules of this repository that a reviewer would
// otherwise have to remember, as tests: who may import whom and why, that every
// package has a comment, that every file is formatted, that no file has grown
// past one topic. Whoever can run go test can run the linters.
package lint
