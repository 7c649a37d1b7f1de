//go:build race

package cc

// raceDetector makes simulations some ten times slower.
const raceDetector = true
