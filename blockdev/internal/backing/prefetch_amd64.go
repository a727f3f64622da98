package backing

// prefetch asks the processor for the first lines at p, which will be read soon by a system
// call or a checksum: it looks up the page meanwhile, and when those lines are read it
// fetches the others by itself (ADR 189). It touches nothing: where p cannot be read it does
// nothing.
//
//go:noescape
func prefetch(p *byte)
