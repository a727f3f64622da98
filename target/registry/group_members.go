package registry

import (
	"softiser/blockdev/lazy"
	"softiser/target/volume"
)

// moving is one volume of a group, while it is served.
type moving struct {
	name string
	open *openVolume
	dev  *lazy.Device
	vol  *volume.Volume
}

// members returns the volumes of a group, which has those of names, that are served.
func members(b *common, names []string) (all []moving) {
	for _, name := range names {
		o := b.volumes.find(name)
		if o == nil {
			continue
		}
		if dev, ok := o.dev.(*lazy.Device); ok {
			if v := b.srv.Volume(dev); v != nil {
				all = append(all, moving{name, o, dev, v})
			}
		}
	}
	return all
}
