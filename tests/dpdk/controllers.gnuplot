# What each congestion controller gets through a link, over loss and over the round trip.
#
# Variables: data (file of simulate --data), picture (the file to write).

set terminal svg size 760, 320 font 'sans,13' noenhanced background rgb '#ffffff'
set output picture
set encoding utf8
set border 3 linecolor rgb '#888888'
set tics nomirror scale 0.5 textcolor rgb '#444444'
set grid ytics linetype 1 linewidth 0.6 linecolor rgb '#dddddd'
set yrange [0:1.04]
set ytics 0.2
set key at graph 0.98, graph 0.56 right samplen 1.4 spacing 1.1 textcolor rgb '#222222'
set multiplot layout 1, 2 margins 0.075, 0.965, 0.17, 0.86 spacing 0.085

colours = "#1b6ca8 #c8553d #8a8a8a"
names = "swift cubic fixed"

set title 'over loss, round trip 1 ms' textcolor rgb '#222222' offset 0, -0.3
set ylabel 'goodput, part of 10 Gb/s' textcolor rgb '#444444' offset 1.2, 0
set xlabel 'packets lost at random, %' textcolor rgb '#444444' offset 0, 0.3
set xrange [0:5]
plot for [column = 1:3] data index 0 using 1:(column(column + 1)) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.45 linecolor rgb word(colours, column) \
	title word(names, column)

set title 'over the round trip, 1 % lost' textcolor rgb '#222222' offset 0, -0.3
unset ylabel
unset key
set xlabel 'round trip without queues' textcolor rgb '#444444' offset 0, 0.3
set logscale x
set xrange [20:50000]
set xtics ('20 µs' 20, '100 µs' 100, '1 ms' 1000, '10 ms' 10000, '50 ms' 50000)
plot for [column = 1:3] data index 1 using 1:(column(column + 1)) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.45 linecolor rgb word(colours, column) notitle
unset multiplot
