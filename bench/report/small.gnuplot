# Small messages: how many a second, and how long one takes, over how many are in flight.
#
# Variables: data (file: in flight, then for each series the rate a second, and the median and the
# 99th percentile in µs), series (their names, quoted), roles (their colours), count.

set terminal svg size 720, 340 font 'sans,13' noenhanced
set datafile separator "\t"
set datafile missing "-"
set encoding utf8
set border 0
set tics textcolor rgb '#010106' scale 0
set grid ytics linetype 1 linewidth 1 linecolor rgb '#010102'
set key above left horizontal reverse Left textcolor rgb '#010101' samplen 1.6
set xlabel 'in flight' textcolor rgb '#010106'
set logscale xy
set format y '%g'
rate_of(number) = 3 * number - 1
set multiplot layout 1, 2
set ylabel 'tensors/s' textcolor rgb '#010106'
plot for [number = 1:count] data using 1:(column(rate_of(number))) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.55 linecolor rgb word(roles, number) \
	title word(series, number)
set ylabel 'µs: median; dashed: 99th percentile' textcolor rgb '#010106'
plot for [number = 1:count] data using 1:(column(rate_of(number) + 1)) with linespoints \
	linewidth 2.2 pointtype 7 pointsize 0.55 linecolor rgb word(roles, number) \
	title word(series, number), \
	for [number = 1:count] data using 1:(column(rate_of(number) + 2)) with lines linewidth 1.4 \
	dashtype (4, 3) linecolor rgb word(roles, number) notitle
unset multiplot
