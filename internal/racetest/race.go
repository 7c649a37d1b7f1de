//go:build race

package racetest

// On is set with the race detector, which makes simulations some ten times slower. Tests then try fewer of them.
const On = true
