package resident

// Fetch asks the processor for the first lines at p, which will be read soon by a system
// call or a checksum. It touches nothing: where p cannot be read it does nothing. What takes
// longest is to look up the page; asked for many places in a row, the processor does several
// of these at a time, and when the first lines of a page are read it fetches the others by
// itself (ADR 189).
//
//go:noescape
func Fetch(p *byte)
