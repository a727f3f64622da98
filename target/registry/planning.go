package registry

import (
	"context"
	"fmt"
	"slices"

	"softiser/config"
)

// planning is what a reload starts from: the configuration in force, the next one, and what
// is served now.
type planning struct {
	*common
	groups    *groups
	mapping   *mapping
	old, next *config.Config
}

// removeNode is the step that takes a target or a subsystem away with all its places;
// restore puts it back into a configuration when that is not over.
func (p *planning) removeNode(name string, remove func(context.Context) error, restore func(*config.Config)) step {
	var frees []place
	for _, o := range p.volumes.all() {
		for _, at := range p.volumes.placesOf(o) {
			if at.node == name {
				frees = append(frees, at)
			}
		}
	}
	return step{
		Change: Change{Action: "remove", Object: name},
		frees:  frees,
		take:   func(ctx context.Context) error { return p.mapping.removeNode(ctx, name, remove) },
		keep: func(c *config.Config) {
			if p.mapping.isLeaving(name) {
				restore(c)
			}
		},
	}
}

// noGroup says why nothing is reached through a portal group, "" if it is: the portals are
// those of the start.
func (p *planning) noGroup(group int) string {
	if !slices.ContainsFunc(p.old.Portals, func(q config.Portal) bool { return q.Group == group }) {
		return fmt.Sprintf("no portal of the running target belongs to group %d; a new portal %s", group, atStart)
	}
	return ""
}
