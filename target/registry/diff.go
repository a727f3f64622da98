package registry

import (
	"reflect"
	"slices"
)

// differing lists the keys of two structures of one type that are not equal.
func differing(a, b any) (keys []string) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			keys = append(keys, x.Type().Field(i).Tag.Get("mapstructure"))
		}
	}
	return keys
}

// tunables are the keys of a volume that a reload changes on line.
var tunables = []string{"size", "qos", "snapshots"}

func withoutTunables(keys []string) []string {
	return slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(tunables, k) })
}
